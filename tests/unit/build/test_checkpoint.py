"""Tests of reading and writing checkpoints: exact values, and a clear error for everything invalid."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from build.checkpoints.tensor_file import Tensor, e4m3_values, read_tensors, write_tensors
from build.hugging_face.quantized.tensorrt_llm import unpack_int4
from build.networks.source import open_network
from build.networks.weight_only import quantize_int8
from pipelines.errors import CheckpointError
from tests.support.checkpoints import QUANTIZERS, make_checkpoint
from tests.support.hugging_face_checkpoints import change_config
from tests.support.tiny_engines import random_weights, tiny_config, write_checkpoint

QKV = "transformer.layers.1.attention.qkv.weight"


@pytest.mark.parametrize("algo", [None, *QUANTIZERS])
def test_a_checkpoint_of_tensorrt_llm_is_read_under_the_names_of_transformers(
    algo: str | None, tmp_path: Path
) -> None:
    network = make_checkpoint(tmp_path, algo, share_embedding_table=False)
    stored = read_tensors(tmp_path / "rank0.safetensors")
    layer = network.layer(1)
    places = {
        **{"transformer.vocab_embedding": network.embedding, "lm_head": network.lm_head.weight},
        **{
            f"transformer.layers.1.{name}": linear.weight
            for name, linear in {
                **{"attention.qkv": layer.qkv[0], "attention.dense": layer.dense, "mlp.fc": layer.fc},
                **{"mlp.gate": layer.gate, "mlp.proj": layer.proj},
            }.items()
        },
    }
    assert network.config.quant_algo == algo
    for name, tensor in places.items():
        data = stored[f"{name}.weight"].data
        is_packed = algo is not None and algo.startswith("W4") and ".layers." in name
        assert np.array_equal(tensor.data, unpack_int4(data) if is_packed else data), name
    for name, gain in (("input_layernorm", layer.input_norm), ("post_layernorm", layer.post_norm)):
        assert gain is not None
        assert np.array_equal(gain, stored[f"transformer.layers.1.{name}.weight"].to_float32())


def test_file_is_what_the_safetensors_package_reads(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    tensors = {"a": Tensor("F32", (3, 4), values), "b": Tensor("I8", (5,), np.arange(5, dtype=np.int8))}
    write_tensors(tmp_path / "mine.safetensors", tensors, {"format": "pt"})
    theirs = safetensors.load_file(tmp_path / "mine.safetensors")
    assert np.array_equal(theirs["a"], values)
    safetensors.save_file({"x": values.astype(np.float16)}, tmp_path / "theirs.safetensors")
    assert np.array_equal(read_tensors(tmp_path / "theirs.safetensors")["x"].to_float32(), values)


def test_empty_and_scalar_tensors(tmp_path: Path) -> None:
    tensors = {
        "empty": Tensor("F32", (0, 3), np.zeros((0, 3), np.float32)),
        "scalar": Tensor("F32", (), np.float32(2.5).reshape(())),
    }
    write_tensors(tmp_path / "file.safetensors", tensors)
    read = read_tensors(tmp_path / "file.safetensors")
    assert read["empty"].data.shape == (0, 3)
    assert read["scalar"].to_float32() == np.float32(2.5)


def test_e4m3_values() -> None:
    values = e4m3_values()
    assert values[0x7E] == 448
    assert values[0x08] == 2.0**-6  # smallest normal
    assert values[0x01] == 2.0**-9  # smallest subnormal
    assert values[0x38] == 1
    assert np.isnan(values[[0x7F, 0xFF]]).all()
    assert np.isfinite(np.delete(values, [0x7F, 0xFF])).all()
    assert np.array_equal(values[1:127], -values[129:255])
    assert (np.diff(values[:127]) > 0).all()


@given(st.lists(st.floats(-(2.0**127), 2.0**127, width=32)))
def test_bfloat16_rounds_to_nearest_even(numbers: list[float]) -> None:
    values = np.array(numbers, np.float32)
    rounded = Tensor.from_float32(values, "BF16").to_float32().astype(np.float64)
    exact = values.astype(np.float64)
    below = (values.view(np.uint32) & 0xFFFF0000).view(np.float32).astype(np.float64)
    step = (((values.view(np.uint32) >> 16) + 1) << 16).view(np.float32).astype(np.float64) - below
    finite = np.isfinite(rounded)
    assert (np.abs(rounded - exact)[finite] <= (np.abs(step) / 2)[finite]).all()
    assert np.array_equal(Tensor.from_float32(rounded.astype(np.float32), "BF16").to_float32(), rounded)


@given(st.integers(1, 5), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_int8_error_is_at_most_half_a_step(rows: int, columns: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    magnitudes = 10.0 ** rng.integers(-6, 6, (rows, 1))
    values = (rng.standard_normal((rows, columns)) * magnitudes).astype(np.float32)
    values[rng.random(rows) < 0.2] = 0
    linear = quantize_int8(values)
    assert linear.scale is not None
    assert linear.weight.data.min() >= -127
    error = np.abs(linear.to_float32().astype(np.float64) - values)
    assert (error <= 0.5001 * linear.scale).all()
    assert (linear.scale > 0).all()


def damaged(tmp_path: Path, change: Callable[[bytearray], bytes]) -> None:
    path = tmp_path / "rank0.safetensors"
    path.write_bytes(change(bytearray(path.read_bytes())))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[: len(data) // 2], "ends at byte"),
        (lambda data: data[:-1], "ends at byte"),
        (lambda data: data[:100], "header of"),
        (lambda data: data[:5], "only 5 bytes"),
        (lambda data: b"", "only 0 bytes"),
        (lambda data: struct.pack("<Q", 1 << 60) + data[8:], "header of"),
        (lambda data: data[:8] + b"!" + data[9:], "not JSON"),
        (lambda data: data.replace(b'"BF16"', b'"BF99"', 1), "unknown type BF99"),
        (lambda data: data.replace(b'"shape"', b'"shepa"', 1), "is incomplete"),
        (lambda data: data.replace(b"[2048,128]", b"[2048,129]", 1), "bytes, not"),
        (lambda data: data.replace(b"[2048,128]", b"[-048,128]", 1), "not JSON"),
    ],
)
def test_damaged_weights_are_refused(
    change: Callable[[bytearray], bytes], message: str, tmp_path: Path
) -> None:
    make_checkpoint(tmp_path)
    damaged(tmp_path, change)
    with pytest.raises(CheckpointError, match=message) as caught:
        open_network(tmp_path)
    assert "rank0.safetensors" in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("weight", "config", "message"),
    [
        (None, {}, "missing model.layers.1.self_attn.q_proj.weight"),
        ("BF16", {"num_key_value_heads": 4}, r"qkv_proj\.weight is BF16 \[512, 128\].*\[768, 128\]"),
        ("I8", {}, r"qkv_proj\.weight is I8"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(
    weight: str | None, config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    tensors = random_weights(tiny_config())
    if weight is None:
        del tensors[QKV]
    elif weight == "I8":
        tensors[QKV] = Tensor("I8", (512, 128), np.zeros((512, 128), np.int8))
    write_checkpoint(tmp_path, tiny_config(**config), tensors)
    with pytest.raises(CheckpointError, match=message):
        open_network(tmp_path)


@pytest.mark.parametrize(
    ("algo", "factor"),
    [
        ("FP8", "weights_scaling_factor"),
        ("FP8", "activation_scaling_factor"),
        ("W8A8_SQ_PER_CHANNEL", "prequant_scaling_factor"),
        ("W4A8_AWQ", "activation_scaling_factor"),
    ],
)
def test_missing_factor_is_named(algo: str, factor: str, tmp_path: Path) -> None:
    make_checkpoint(tmp_path, algo)
    tensors = dict(read_tensors(tmp_path / "rank0.safetensors"))
    del tensors[f"transformer.layers.0.mlp.proj.{factor}"]
    write_checkpoint(tmp_path, json.loads((tmp_path / "config.json").read_text()), tensors)
    with pytest.raises(CheckpointError, match=rf"missing model.layers.0.mlp.down_proj.{factor}"):
        open_network(tmp_path)


def test_groups_that_do_not_divide_the_inputs_are_refused(tmp_path: Path) -> None:
    make_checkpoint(tmp_path, "W4A16_AWQ")
    change_config(tmp_path, quantization={"quant_algo": "W4A16_AWQ", "group_size": 96})
    with pytest.raises(CheckpointError, match="group_size=96"):
        open_network(tmp_path)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("transformer.layers.0.attention.qkv.bias", "not asked for: .*bias"),
        ("transformer.layers.0.attention.q_layernorm.weight", "not asked for: .*q_layernorm"),
        ("transformer.layers.0.mlp.fc.prequant_scaling_factor", "not asked for: .*prequant"),
        ("model.norm.weight", "under two names"),
    ],
)
def test_tensors_of_other_architectures_are_refused(name: str, words: str, tmp_path: Path) -> None:
    tensors = random_weights(tiny_config())
    tensors[name] = Tensor("F32", (128,), np.zeros(128, np.float32))
    write_checkpoint(tmp_path, tiny_config(), tensors)
    with pytest.raises(CheckpointError, match=words):
        open_network(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rotary_base": None}, "no rotary_base"),
        ({"architecture": "QWenForCausalLM"}, "architecture='QWenForCausalLM'"),
        ({"architecture": None}, "architecture=None"),
        ({"attn_bias": True}, "attn_bias=True"),
        ({"architecture": "Qwen2ForCausalLM", "attn_bias": False}, "attn_bias=False"),
        ({"mlp_bias": True}, "mlp_bias=True"),
        ({"lm_head_bias": True}, "lm_head_bias=True"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"position_embedding_type": "rope_gptj"}, "position_embedding_type"),
        ({"mapping": {"world_size": 2, "tp_size": 2, "pp_size": 1}}, "mapping.world_size=2"),
        ({"quantization": {"quant_algo": "NVFP4"}}, "quant_algo='NVFP4'"),
        ({"quantization": {"quant_algo": "W4A16_AWQ"}}, "group_size=None"),
        ({"quantization": {"quant_algo": "FP8", "exclude_modules": ["mlp.fc"]}}, "exclude_modules"),
        ({"rotary_scaling": {"rope_type": "yarn", "factor": 4}}, "yarn"),
        ({"rotary_scaling": {"rope_type": "llama3", "factor": 8}}, "low_freq_factor"),
        ({"rotary_scaling": 3}, "rotary_scaling=3"),
        ({"num_attention_heads": 3}, "num_attention_heads=3"),
        ({"num_hidden_layers": 0}, "num_hidden_layers=0"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers='2'"),
        ({"vocab_size": True}, "vocab_size=True"),
        ({"norm_epsilon": -1}, "norm_epsilon=-1"),
        ({"dtype": "int3"}, "dtype='int3'"),
    ],
)
def test_config_that_would_compute_something_else_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write_checkpoint(tmp_path, tiny_config(**changes), random_weights(tiny_config()))
    with pytest.raises(CheckpointError) as caught:
        open_network(tmp_path)
    error = caught.value
    assert message in str(error)
    assert "config.json" in error.message
    assert error.message and error.remedy


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', "\xff"])
def test_config_that_is_not_an_object_is_refused(text: str, tmp_path: Path) -> None:
    make_checkpoint(tmp_path)
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match=r"config\.json"):
        open_network(tmp_path)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("config.json", r"config\.json cannot be read"),
        ("rank0.safetensors", "is not complete: no safetensors"),
    ],
)
def test_absent_file_is_named(name: str, words: str, tmp_path: Path) -> None:
    make_checkpoint(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(CheckpointError, match=words):
        open_network(tmp_path)
