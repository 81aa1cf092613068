"""Tests of which checkpoint an engine is compiled from, and of a changed source; without torch."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from build.checkpoints.tensor_file import Tensor
from build.files import write_manifest
from build.quantization.calibration_text import read_calibration_text
from build.quantization.checks import check_finite
from build.quantization.quantized_checkpoint import (
    QuantizedCheckpoint,
    checkpoint_for,
    file_stamps,
    plan_checkpoint,
)
from build.quantization.source import read_checkpoint_source
from build.recipe import Recipe, load_recipe
from build.tensorrt_llm.settings import Calibration
from pipelines.errors import CheckpointError, DraftproofError, RecipeError
from tests.support.checkpoints import make_checkpoint
from tests.support.hugging_face_checkpoints import (
    change_config,
    change_weights,
    make_hugging_face,
    pair_recipe,
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_hugging_face(tmp_path / "source")


def recipe_of(tmp_path: Path, checkpoint: Path, runtime: str = "embedded", **target: Any) -> Recipe:
    section = {"checkpoint": str(checkpoint), **target}
    return pair_recipe(tmp_path, section, section, runtime=runtime)


def plan_of(recipe: Recipe, tmp_path: Path) -> QuantizedCheckpoint:
    plan = plan_checkpoint(recipe, "target", tmp_path / "engines")
    assert plan is not None
    return plan


def pretend_it_was_made(plan: QuantizedCheckpoint) -> None:
    plan.directory.mkdir(parents=True)
    write_manifest(
        plan.directory,
        {
            "fingerprint": plan.fingerprint,
            "source": str(plan.source.directory),
            "source_sha256": dict(plan.source_sha256),
            "source_stamps": file_stamps(plan.source),
            "settings": dict(plan.settings),
        },
    )


def refused(error_type: type[DraftproofError], recipe: Recipe, tmp_path: Path) -> DraftproofError:
    with pytest.raises(error_type) as caught:
        checkpoint_for(recipe, "target", tmp_path / "engines")
    error = caught.value
    assert error.message and error.remedy
    return error


@pytest.mark.parametrize(
    ("runtime", "quantization", "own"),
    [
        ("embedded", "checkpoint", True),
        ("embedded", "none", True),
        ("embedded", "int8", True),
        ("embedded", "fp8", False),
        ("tensorrt_llm", "checkpoint", True),
        ("tensorrt_llm", "none", True),
        ("tensorrt_llm", "int8", False),  # its loader rounds only what config.json calls W8A16
        ("tensorrt_llm", "int4_awq", False),
    ],
)
def test_own_checkpoint_or_a_quantized_one(
    runtime: str, quantization: str, own: bool, tmp_path: Path
) -> None:
    make_checkpoint(tmp_path / "float")
    recipe = recipe_of(tmp_path, tmp_path / "float", runtime, quantization=quantization)
    assert (plan_checkpoint(recipe, "target", tmp_path / "engines") is None) == own
    if own:
        assert checkpoint_for(recipe, "target", tmp_path / "engines") == tmp_path / "float"


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ({"pad_vocab_size_to": 4096}, "pad_vocab_size_to", 4096),
        ({"tensorrt_llm": {"tp_size": 2}}, "tp_size", 2),
    ],
)
def test_a_padded_vocabulary_or_a_split_needs_another_checkpoint(
    section: dict[str, Any], name: str, value: int, tmp_path: Path
) -> None:
    make_checkpoint(tmp_path / "float")
    recipe = recipe_of(tmp_path, tmp_path / "float", "tensorrt_llm", quantization="none", **section)
    assert plan_of(recipe, tmp_path).settings[name] == value


@pytest.mark.parametrize("runtime", ["embedded", "tensorrt_llm"])
@pytest.mark.parametrize("quantization", ["none", "int8", "fp8", "int8_sq", "int4_awq", "w4a8_awq"])
def test_modelopt_converts_a_hugging_face_checkpoint(
    runtime: str, quantization: str, source: Path, tmp_path: Path
) -> None:
    recipe = recipe_of(tmp_path, source, runtime, quantization=quantization)
    if runtime == "embedded" and quantization in ("none", "int8"):
        assert checkpoint_for(recipe, "target", tmp_path / "engines") == source
        return
    plan = plan_of(recipe, tmp_path)
    assert plan.directory == tmp_path / "engines/tiny/checkpoints" / f"target-{plan.fingerprint[:16]}"
    assert (plan.settings["calibration"] is None) == (quantization in ("none", "int8"))


def test_a_missing_quantized_checkpoint_is_requested(source: Path, tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, source, quantization="fp8")
    error = refused(CheckpointError, recipe, tmp_path)
    assert error.remedy == f"run draftproof quantize --recipe {recipe.path}", (
        "no name finds a recipe that is elsewhere"
    )
    assert "looked for" in error.message
    assert load_recipe("demo").argument == "demo"


def test_what_is_made_is_found_and_a_change_of_the_source_is_noticed(source: Path, tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, source, quantization="fp8")
    plan = plan_of(recipe, tmp_path)
    pretend_it_was_made(plan)
    assert checkpoint_for(recipe, "target", tmp_path / "engines") == plan.directory
    refused(CheckpointError, recipe_of(tmp_path, source, quantization="int8_sq"), tmp_path)
    change_config(source, rope_theta=5000.0)
    error = refused(CheckpointError, recipe, tmp_path)
    assert "changed" in error.message and "draftproof quantize" in error.remedy


def test_a_source_with_another_time_and_the_same_content_is_the_same(source: Path, tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, source, quantization="fp8")
    pretend_it_was_made(plan_of(recipe, tmp_path))
    os.utime(source / "model.safetensors", ns=(1, 1))
    checkpoint_for(recipe, "target", tmp_path / "engines")


def test_half_a_checkpoint_is_none(source: Path, tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, source, quantization="fp8")
    plan = plan_of(recipe, tmp_path)
    pretend_it_was_made(plan)
    (plan.directory / "manifest.json").unlink()
    refused(CheckpointError, recipe, tmp_path)


@pytest.mark.parametrize("section", [{"num_samples": 9}, {"seq_len": 32}, {"text": None}])
def test_another_calibration_is_another_checkpoint(
    section: dict[str, Any], source: Path, tmp_path: Path
) -> None:
    recipe = recipe_of(tmp_path, source, quantization="fp8")
    calibration = dataclasses.replace(recipe.tensorrt_llm.calibration, **section)
    other = dataclasses.replace(
        recipe, tensorrt_llm=dataclasses.replace(recipe.tensorrt_llm, calibration=calibration)
    )
    assert plan_of(recipe, tmp_path).fingerprint != plan_of(other, tmp_path).fingerprint


def test_calibration_does_not_change_uncalibrated_checkpoints(source: Path, tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, source, "tensorrt_llm", quantization="int8")
    calibration = Calibration(text="nowhere.txt")
    other = dataclasses.replace(
        recipe, tensorrt_llm=dataclasses.replace(recipe.tensorrt_llm, calibration=calibration)
    )
    assert plan_of(recipe, tmp_path).fingerprint == plan_of(other, tmp_path).fingerprint


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model_type": "qwen2", "sliding_window": 128, "use_sliding_window": False}, ""),
        ({"model_type": "qwen2", "sliding_window": 128}, ""),
        ({"model_type": "mistral", "sliding_window": 2048}, ""),  # limits nothing
        ({"model_type": "mistral"}, ""),  # null in config.json
        ({"model_type": "gemma"}, "supported: llama, mistral, qwen2, qwen3"),
        ({"attention_bias": True}, "must not have biases"),
        ({"mlp_bias": True}, "must not have biases"),
        ({"model_type": "mistral", "sliding_window": 128}, "the format has no windows"),
        ({"model_type": "mistral", "sliding_window": None, "max_position_embeddings": 8192}, "window=4096"),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 128},
            "the format has no windows",
        ),
        ({"quantization_config": {"quant_method": "gptq"}}, "floating point"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
    ],
)
def test_models_that_the_export_would_get_wrong(
    changes: dict[str, Any], expected: str, source: Path, tmp_path: Path
) -> None:
    change_config(source, **changes)
    recipe = recipe_of(tmp_path, source, quantization="fp8")
    if not expected:
        assert plan_of(recipe, tmp_path)
        return
    error = refused(CheckpointError, recipe, tmp_path)
    assert expected in str(error) and str(source) in error.message


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"quantization": "checkpoint"}, "cannot be compiled with quantization: checkpoint"),
        ({"quantization": "fp8", "pad_vocab_size_to": 1000}, "vocab_size=2048"),
        ({"quantization": "fp8", "growth": {"num_layers": 4, "intermediate_size": 512}}, "growth"),
    ],
)
def test_recipes_that_ask_for_what_does_not_go_together(
    section: dict[str, Any], expected: str, source: Path, tmp_path: Path
) -> None:
    recipe = recipe_of(tmp_path, source, "tensorrt_llm", **section)
    assert expected in str(refused(RecipeError, recipe, tmp_path))


def test_qwen3_is_refused_for_the_runtime_that_does_not_compute_it(tmp_path: Path) -> None:
    source = make_hugging_face(tmp_path / "qwen", "qwen3")
    plan_of(recipe_of(tmp_path, source, "tensorrt_llm", quantization="fp8"), tmp_path)
    error = refused(RecipeError, recipe_of(tmp_path, source, quantization="fp8"), tmp_path)
    assert "model_type=qwen3" in error.message and "runtime: tensorrt_llm" in error.remedy


def test_a_quantized_checkpoint_cannot_be_quantized_again(tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "fp8", "FP8")
    error = refused(CheckpointError, recipe_of(tmp_path, tmp_path / "fp8", quantization="int8_sq"), tmp_path)
    assert "quant_algo=FP8" in error.message


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_an_absent_file_is_named(name: str, source: Path, tmp_path: Path) -> None:
    (source / name).unlink()
    error = refused(CheckpointError, recipe_of(tmp_path, source, quantization="fp8"), tmp_path)
    assert name in str(error)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"keys": 1}'])
def test_a_config_of_no_known_form(content: str, source: Path, tmp_path: Path) -> None:
    (source / "config.json").write_text(content)
    error = refused(CheckpointError, recipe_of(tmp_path, source, quantization="fp8"), tmp_path)
    assert "config.json" in error.message


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_weights_that_are_not_numbers(dtype: str, value: float, source: Path) -> None:
    def spoil(tensors: dict[str, Tensor]) -> None:
        name = "model.layers.1.mlp.up_proj.weight"
        values = tensors[name].to_float32()
        values[3, 4] = value
        tensors[name] = Tensor.from_float32(values, dtype)

    check_finite(read_checkpoint_source(source))
    change_weights(source, spoil)
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.up_proj") as caught:
        check_finite(read_checkpoint_source(source))
    assert caught.value.message and caught.value.remedy


def test_calibration_pieces_are_counted_and_in_order(source: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(f"line {number}\n" for number in range(2000)), encoding="utf-8")
    found = read_calibration_text(Calibration(str(text), 5, 40), source / "tokenizer.json")
    assert [len(piece) for piece in found.pieces] == [40] * 5
    assert found.num_tokens == 200
    assert found == read_calibration_text(Calibration(str(text), 5, 40), source / "tokenizer.json")
    assert len({tuple(piece) for piece in found.pieces}) == 5


@pytest.mark.long
def test_the_built_in_text_is_enough_for_the_default(source: Path) -> None:
    found = read_calibration_text(Calibration(num_samples=512, seq_len=64), source / "tokenizer.json")
    assert found.num_tokens == 512 * 64 and found.name == "the standard library"


@pytest.mark.parametrize("content", [b"", b"too short", b"\xff\xfe garbage"])
def test_a_text_that_cannot_be_used(content: bytes, source: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(content)
    with pytest.raises(CheckpointError, match="calibration text") as caught:
        read_calibration_text(Calibration(str(text), 5, 40), source / "tokenizer.json")
    assert caught.value.message and caught.value.remedy


def test_a_text_that_is_not_there(source: Path, tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, source, quantization="fp8")
    (tmp_path / "calibration.txt").unlink()
    assert "calibration.txt does not exist" in refused(CheckpointError, recipe, tmp_path).message
