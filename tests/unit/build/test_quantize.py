"""Tests of real ModelOpt on small random checkpoints: every trap of its export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import build.quantize as quantize
from build.checkpoints.tensor_file import Tensor, read_tensors
from build.checkpoints.tensorrt_llm import EMBEDDING, WEIGHTS
from build.networks.network import Rotary
from build.networks.source import open_network
from build.quantization.checks import LARGEST_ERRORS, compare, join_qkv
from build.quantization.source import read_checkpoint_source
from pipelines.manifest import checked_engine
from tests.conftest import REPOSITORY_ROOT
from tests.support.checkpoints import LLAMA3_SCALING
from tests.support.hugging_face_checkpoints import make_hugging_face, pair_recipe
from tests.support.modelopt_in_process import made, run_in_process
from tests.support.tensorrt_llm_1_2_1 import QUANT_CONFIG, REQUIRED_CONFIG

pytestmark = [pytest.mark.xdist_group("torch"), pytest.mark.long]

ALGOS = {
    "fp8": "FP8",
    "int8_sq": "W8A8_SQ_PER_CHANNEL",
    "int4_awq": "W4A16_AWQ",
    "w4a8_awq": "W4A8_AWQ",
    "int8": "W8A16",
    "none": None,
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a source checkpoint with Llama 3's rotary settings and tied heads."""
    return make_hugging_face(
        tmp_path_factory.mktemp("source") / "llama",
        rotary_base=500000.0,
        rotary_scaling=LLAMA3_SCALING,
        share_embedding_table=True,
    )


def config_of(directory: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    return document


@pytest.fixture(scope="module", params=list(ALGOS))
def checkpoint(
    request: pytest.FixtureRequest, source: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    """A checkpoint of each kind."""
    return request.param, made(tmp_path_factory.mktemp(request.param), source, request.param)[0]


def test_weights_come_back_within_rounding(checkpoint: tuple[str, Path], source: Path) -> None:
    quantization, directory = checkpoint
    measured = compare(directory, config_of(directory), read_checkpoint_source(source))
    print(f"{quantization}: {measured.largest_error:.4f} at {measured.projection}")
    algo = ALGOS[quantization]
    assert measured.largest_error <= LARGEST_ERRORS[algo]
    if algo not in (None, "W8A16"):
        assert measured.largest_error > 1e-3  # it was rounded


def test_the_embedded_runtime_reads_it(checkpoint: tuple[str, Path]) -> None:
    quantization, directory = checkpoint
    found = open_network(directory).read()
    assert found.config.quant_algo == ALGOS[quantization]
    rounding = found.layer(0).qkv[0].input_quantization
    assert (rounding is not None) == (quantization in ("fp8", "int8_sq", "w4a8_awq"))


def test_config_and_manifest(checkpoint: tuple[str, Path], source: Path) -> None:
    quantization, directory = checkpoint
    config = config_of(directory)
    assert config["logits_dtype"] == "float32"  # both engines alike, and no ties from rounding
    assert config["mapping"] == {"world_size": 1, "tp_size": 1, "pp_size": 1}
    assert config["quantization"]["quant_algo"] == ALGOS[quantization]
    assert config["end_ids"] == [0, 7]
    manifest = checked_engine(directory).manifest
    assert sorted(manifest["files"]) == ["config.json", "rank0.safetensors", "tokenizer.json"]
    assert manifest["packages"]["nvidia-modelopt"] == "0.47.0"
    about_text = manifest["calibration_text"]
    assert (about_text is None) == (quantization in ("none", "int8"))
    if about_text is not None:
        assert about_text["num_tokens"] == 8 * 64
    assert (directory / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    assert config.keys() >= REQUIRED_CONFIG and config["quantization"].keys() <= QUANT_CONFIG
    found = open_network(directory).read()
    rotary = found.config.layers[0].rotary
    assert rotary is not None and rotary.base == 500000.0
    assert rotary.scaling is not None and (rotary.scaling.kind, rotary.scaling.factor) == ("llama3", 8.0)
    assert config["share_embedding_table"] is False  # a tied head is a copy of the table
    tensors = read_tensors(directory / WEIGHTS)
    head, table = tensors["lm_head.weight"], tensors[EMBEDDING]
    assert np.array_equal(head.data, table.data) and head.dtype == "BF16"


def test_fp8_keys_and_values_have_scales_of_at_least_one(source: Path, tmp_path: Path) -> None:
    directory, lines = made(tmp_path, source, "fp8", kv_cache_dtype="fp8")
    assert config_of(directory)["quantization"]["kv_cache_quant_algo"] == "FP8"
    tensors = read_tensors(directory / "rank0.safetensors")
    scales = [tensor for name, tensor in tensors.items() if name.endswith("_cache_scaling_factor")]
    assert "transformer.layers.1.attention.kv_cache_scaling_factor" in tensors
    assert scales and all(scale.to_float32().min() >= 1 for scale in scales)
    assert any("FP8 KV scales" in line for line in lines)
    open_network(directory).read()  # the embedded runtime has keys and values in floating point


def _values(tensor: Tensor) -> npt.NDArray[Any]:
    return tensor.data


@pytest.mark.parametrize("quantization", ["fp8", "int8_sq"])
def test_ranks_of_a_split_are_the_whole(quantization: str, source: Path, tmp_path: Path) -> None:
    whole = read_tensors(made(tmp_path, source, quantization)[0] / "rank0.safetensors")
    split_dir, _ = made(tmp_path, source, quantization, tp_size=2, pp_size=2)
    assert config_of(split_dir)["mapping"] == {"world_size": 4, "tp_size": 2, "pp_size": 2}
    ranks = [read_tensors(split_dir / f"rank{rank}.safetensors") for rank in range(4)]
    for layer in range(2):
        pair = ranks[2 * layer : 2 * layer + 2]  # a stage has one layer, counted from 0

        def parts(name: str, pair: list[dict[str, Tensor]] = pair) -> list[npt.NDArray[Any]]:
            return [_values(rank[f"transformer.layers.0.{name}"]) for rank in pair]

        def expected(name: str, layer: int = layer) -> npt.NDArray[Any]:
            return _values(whole[f"transformer.layers.{layer}.{name}"])

        qkv = join_qkv(parts("attention.qkv.weight"), [4 * 64, 2 * 64])
        assert np.array_equal(qkv, expected("attention.qkv.weight"))
        for name, axis in {"attention.dense": 1, "mlp.proj": 1, "mlp.fc": 0, "mlp.gate": 0}.items():
            assert np.array_equal(
                np.concatenate(parts(f"{name}.weight"), axis), expected(f"{name}.weight")
            ), name
        if quantization == "int8_sq":
            scale = join_qkv(parts("attention.qkv.weights_scaling_factor"), [4 * 64, 2 * 64])
            assert np.array_equal(scale, expected("attention.qkv.weights_scaling_factor"))
            prequant = np.concatenate(parts("mlp.proj.prequant_scaling_factor"))
            assert np.array_equal(prequant, expected("mlp.proj.prequant_scaling_factor"))
    table = "transformer.vocab_embedding.weight"
    joined = np.concatenate([_values(rank[table]) for rank in ranks if table in rank])
    assert np.array_equal(joined, _values(whole[table]))


def test_a_padded_vocabulary_has_rows_that_never_win(source: Path, tmp_path: Path) -> None:
    section = {"checkpoint": str(source), "quantization": "fp8", "pad_vocab_size_to": 2112}
    recipe = pair_recipe(tmp_path, section, section)
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantize, "_run_worker", run_in_process)
        patch.setattr(quantize, "ROLES", ("target",))
        directory = quantize.quantize_recipe(recipe, tmp_path / "engines", lines.append)["target"]
    assert any("padded from 2048 to 2112" in line for line in lines)
    found = open_network(directory).read()
    assert found.config.vocab_size == 2112
    tensors = read_tensors(directory / WEIGHTS)
    head, table = (tensors[name].to_float32() for name in ("lm_head.weight", EMBEDDING))
    assert not table[2048:].any() and np.array_equal(table[:2048], head[:2048])
    assert np.allclose(head[2048:], head[:2048].mean(axis=0), rtol=0.005, atol=1e-6)  # rounded to bfloat16
    logits = head @ np.random.default_rng(0).standard_normal((256, 500)).astype(np.float32)
    assert logits.argmax(axis=0).max() < 2048


def test_qwen2_keeps_its_biases_and_says_what_it_is(tmp_path: Path) -> None:
    source = make_hugging_face(tmp_path / "qwen", "qwen2")
    directory, _ = made(tmp_path, source, "fp8", tp_size=2)
    config = config_of(directory)
    assert (config["architecture"], config["qwen_type"], config["attn_bias"]) == (
        "Qwen2ForCausalLM",
        "qwen2",
        True,
    )
    ranks = [read_tensors(directory / f"rank{rank}.safetensors") for rank in range(2)]
    original = read_tensors(source / "model.safetensors")
    for layer in range(2):
        bias = join_qkv(
            [rank[f"transformer.layers.{layer}.attention.qkv.bias"].data for rank in ranks], [256, 128]
        )
        wanted = [original[f"model.layers.{layer}.self_attn.{name}_proj.bias"].data for name in "qkv"]
        assert np.array_equal(bias, np.concatenate(wanted))
    whole = open_network(made(tmp_path, source, "fp8")[0]).read()
    stored = whole.layer(1).qkv[0].bias
    assert stored is not None and stored.any()


@pytest.mark.parametrize("quantization", ["fp8", "int8_sq"])
def test_qwen3_keeps_the_norms_of_queries_and_keys(quantization: str, tmp_path: Path) -> None:
    """Heads are wider than hidden_size / num_attention_heads, as in Qwen3 0.6B and 32B."""
    source = make_hugging_face(tmp_path / "qwen", "qwen3", head_size=128, share_embedding_table=True)
    directory, _ = made(tmp_path, source, quantization, tp_size=2, pp_size=2)
    config = config_of(directory)
    found = {
        key: config[key] for key in ("architecture", "qwen_type", "attn_bias", "head_size", "seq_length")
    }
    assert found == {
        "architecture": "Qwen3ForCausalLM",
        "qwen_type": "qwen3",
        "attn_bias": False,
        "head_size": 128,
        "seq_length": 8192,
    }
    original = read_tensors(source / "model.safetensors")
    for rank in range(4):
        tensors = read_tensors(directory / f"rank{rank}.safetensors")
        for kind in "qk":
            norm = tensors[f"transformer.layers.0.attention.{kind}_layernorm.weight"]
            wanted = original[
                f"model.layers.{rank // 2}.self_attn.{kind}_norm.weight"
            ]  # a stage has one layer
            assert norm.dtype == "BF16" and np.array_equal(norm.data, wanted.data)


def test_a_tensorrt_llm_checkpoint_becomes_a_quantized_one(tmp_path: Path) -> None:
    demo = REPOSITORY_ROOT / "engines" / "demo_pair" / "draft"
    directory, _ = made(tmp_path, demo, "fp8")
    config = open_network(directory).read().config
    assert config.quant_algo == "FP8" and config.layers[0].rotary == Rotary(10000.0, config.head_size)
    assert config_of(directory)["end_ids"] == [2047]
    assert sorted(path.name for path in directory.parent.iterdir() if path.is_dir()) == [directory.name]
