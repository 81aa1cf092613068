"""Tests of bundles for the PyTorch backend: what decides an answer is pinned, and a change is found."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from build import quantize
from build.built_pair import build_pair
from build.checkpoints.tensor_file import read_tensors, write_tensors
from build.engines import build_engines, check_engines
from build.quantization.export import compare_export
from build.quantization.source import read_checkpoint_source
from build.recipe import Recipe, load_recipe
from build.tensorrt_llm import bundle
from build.tensorrt_llm.llm_api import exported_quantization
from pipelines.errors import CheckpointError, EngineLoadError, RecipeError
from tests.support.checkpoints import LLAMA3_SCALING
from tests.support.hugging_face_checkpoints import make_hugging_face, pair_recipe
from tests.support.modelopt_in_process import run_in_process, worker
from tests.unit.tensorrt_llm.test_preflight import broken_pair

CONTAINER = "nvcr.io/nvidia/tensorrt-llm/release:1.4.0rc1@sha256:" + "0" * 64


def recipe_of(tmp_path: Path, quantization: str = "none", container: str = CONTAINER) -> Recipe:
    sections: dict[str, Any] = {role: {"quantization": quantization} for role in ("draft", "target")}
    broken_pair(tmp_path, sections, {})
    path = tmp_path / "broken.yaml"
    path.write_text(path.read_text() + f"tensorrt_llm: {{version: 1.4.0rc1, container: '{container}'}}\n")
    return load_recipe(path)


def test_a_bundle_pins_version_container_settings_and_both_checkpoints(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path)
    made = build_engines(recipe, tmp_path / "engines", print)
    pinned = json.loads(Path(made["bundle"]).read_text())
    assert (pinned["version"], pinned["container"]) == ("1.4.0rc1", CONTAINER)
    assert set(pinned["settings"]["files"]) == {
        *("model.yaml", "triton.sh", "trtllm-serve.yaml", "trtllm-serve.sh")
    }
    assert {"config.json", "tokenizer.json"} <= set(pinned["target"]["files"])
    found = check_engines(recipe, tmp_path / "engines")
    assert found["damaged"] == [] and len(found["whole"]) >= 8


@pytest.mark.parametrize("damage", ["changed", "missing"])
@pytest.mark.parametrize("of", ["target", "settings"])
def test_damage_is_found(tmp_path: Path, of: str, damage: str) -> None:
    recipe = recipe_of(tmp_path)
    made = build_engines(recipe, tmp_path / "engines", print)
    path = Path(made["settings"]) if of == "settings" else tmp_path / "target" / "config.json"
    path.write_text(path.read_text() + " ") if damage == "changed" else path.unlink()
    assert check_engines(recipe, tmp_path / "engines")["damaged"] == [str(path)]


def test_the_files_themselves_are_read_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_of(tmp_path)
    build_engines(recipe, tmp_path / "engines", print)
    config, added = tmp_path / "draft" / "config.json", tmp_path / "target" / "added.jinja"
    known = bundle.file_digests([config])
    monkeypatch.setattr(bundle, "file_digests", lambda paths: known)
    config.write_text(config.read_text() + " ")
    added.touch()
    assert check_engines(recipe, tmp_path / "engines")["damaged"] == [str(config), str(added)]


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("1.4.0rc1,", "1.4.0rc2,", "version 1.4.0rc1"),
        ("0" * 64, "1" * 64, f"container {CONTAINER}"),
        ("max_batch_size: ", "max_batch_size: 1", "settings "),
    ],
)
def test_a_recipe_that_asks_for_something_else_is_told(
    tmp_path: Path, old: str, new: str, named: str
) -> None:
    build_engines(recipe_of(tmp_path), tmp_path / "engines", print)
    path = tmp_path / "broken.yaml"
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(EngineLoadError, match=rf"pins {named}.*run draftproof engines"):
        check_engines(load_recipe(path), tmp_path / "engines")


@pytest.mark.parametrize("content", ["{}", "[]", '{"format": 2}', '{"format": 1, "draft": []}', "no JSON"])
def test_a_bundle_that_cannot_be_understood_has_a_remedy(tmp_path: Path, content: str) -> None:
    recipe = recipe_of(tmp_path)
    made = build_engines(recipe, tmp_path / "engines", print)
    Path(made["bundle"]).write_text(content)
    with pytest.raises(EngineLoadError, match=r"bundle\.json.*run draftproof engines"):
        check_engines(recipe, tmp_path / "engines")


AWQ = {"quantization_config": {"quant_method": "awq"}}


@pytest.mark.parametrize(
    ("config", "exported", "name"),
    [
        (AWQ, None, "awq"),
        ({"text_config": AWQ}, None, "awq"),
        (AWQ, {"quantization": {"quant_algo": "FP8"}}, "FP8"),
        ({}, {"quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}}, "none"),
        ({"quantization_config": None}, None, "none"),
        ({}, {}, None),
        ({}, {"quantization": {"quant_algo": 8}}, None),
        ({}, [], None),
        ({"quantization_config": {"bits": 4}}, None, None),
    ],
)
def test_what_a_checkpoint_says_of_its_quantization(
    tmp_path: Path, config: Any, exported: Any, name: str | None
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    if exported is not None:
        (tmp_path / "hf_quant_config.json").write_text(json.dumps(exported))
    with nullcontext() if name else pytest.raises(CheckpointError):
        assert exported_quantization(tmp_path) == name


def test_an_empty_checkpoint_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path)
    for path in (tmp_path / "draft").iterdir():
        path.unlink()
    with pytest.raises(CheckpointError, match=r"draft/config\.json"):
        build_engines(recipe, tmp_path / "engines", print)
    assert not (tmp_path / "engines").exists()


def test_what_would_not_be_served_as_it_says_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="container by digest"):
        build_engines(recipe_of(tmp_path, container="nvcr.io/nvidia/tensorrt-llm/release:1.4.0rc1"), tmp_path)
    with pytest.raises(RecipeError, match=r"draft\.quantization=int8_sq.*none, fp8"):
        build_engines(recipe_of(tmp_path, quantization="int8_sq"), tmp_path)
    with pytest.raises(EngineLoadError, match=r"bundle\.json: cannot be read"):
        check_engines(recipe_of(tmp_path), tmp_path / "none")


def test_our_server_names_nvidias(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("build.built_pair.ENGINES", tmp_path / "engines")
    monkeypatch.setattr("build.built_pair.check_prompts", lambda recipe: None)
    with pytest.raises(RecipeError, match=r"run sh .*trtllm-serve\.sh"):
        build_pair(recipe_of(tmp_path), print)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # from ModelOpt and its libraries
@pytest.mark.parametrize(
    ("family", "cache", "vocab_size"),
    [("llama", "model", 2112), ("qwen3", "fp8", None), ("qwen2", "model", None)],
)
def test_a_checkpoint_is_exported_in_fp8_and_pinned(
    family: str, cache: str, vocab_size: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker()
    tied, base = vocab_size is not None, 500000.0
    options = {"rotary_base": base, "rotary_scaling": LLAMA3_SCALING, "share_embedding_table": tied}
    options["dtype"] = "float32" if tied else "bfloat16"
    source = make_hugging_face(tmp_path / "source", family, **options)
    (source / "chat_template.jinja").write_text("{{ messages }}")
    sizes = {"tp_size": 2, "kv_cache_dtype": cache}  # the format is that of one rank
    section = {"checkpoint": str(source), "quantization": "fp8", "tensorrt_llm": sizes}
    section |= {"pad_vocab_size_to": vocab_size} if tied else {}
    recipe = pair_recipe(tmp_path, section, section, runtime="tensorrt_llm")
    version = replace(recipe.tensorrt_llm, version="1.4.0rc1", container=CONTAINER)
    recipe = replace(recipe, tensorrt_llm=version)
    with pytest.raises(CheckpointError, match="run draftproof quantize"):
        build_engines(recipe, tmp_path / "engines", print)
    monkeypatch.setattr(quantize, "_run_worker", run_in_process)
    made = quantize.quantize_recipe(recipe, tmp_path / "engines", print)["target"]
    bundled = build_engines(recipe, tmp_path / "engines", print)
    pinned = json.loads(Path(bundled["bundle"]).read_text())["target"]
    assert (pinned["directory"], pinned["quantization"]) == (str(made), "FP8")
    assert {"hf_quant_config.json", "chat_template.jinja", "tokenizer_config.json"} <= set(pinned["files"])
    assert yaml.safe_load(Path(bundled["model"]).read_text())["model"] == str(made)
    assert check_engines(recipe, tmp_path / "engines")["damaged"] == []

    config = json.loads((made / "config.json").read_text())
    assert config["rope_theta"] == base and config["rope_scaling"]["rope_type"] == "llama3"
    assert config["vocab_size"] == (vocab_size or 2048) and not config["tie_word_embeddings"]
    assert config["dtype"] == config["torch_dtype"] == ("float16" if tied else "bfloat16")
    tensors = read_tensors(made / "model.safetensors")
    assert ("model.layers.1.self_attn.k_proj.k_scale" in tensors) == (cache == "fp8")
    gate = next(name for name in tensors if name.endswith("gate_proj.weight"))
    for damage in ({}, {gate: tensors[gate.replace("gate", "up")]}, {gate: None}):
        changed = {**tensors, **damage}
        (made / "model.safetensors").chmod(0o644)
        write_tensors(made / "model.safetensors", {name: each for name, each in changed.items() if each})
        with pytest.raises(CheckpointError) if damage else nullcontext():
            assert 0.01 < compare_export(made, read_checkpoint_source(source)).largest_error < 0.04
