"""Tests of networks read from GGUF files, beside the checkpoints that the files were converted from."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from build.gguf.blocks import dequantized, linear_of
from build.gguf.file import STORED_TYPES, open_gguf
from build.gguf.network import config_of
from build.gguf.translate import translate
from build.networks.network import Network, NetworkConfig
from build.networks.source import open_network
from pipelines.errors import CheckpointError
from tests.golden.families import save_family
from tests.support.gguf_files import Stored, convert, write_gguf
from tests.support.hugging_face_checkpoints import change_config

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"rope_parameters": LLAMA3, "max_position_embeddings": 131072},
    **{name: {} for name in ("llama-biases", "qwen2", "qwen3", "qwen3-yarn", "smollm3")},
    **{name: {} for name in ("granite", "olmo2", "phi3", "phi3-mini4")},
    "gemma2": {"query_pre_attn_scalar": 64},
    "gemma2-heads256": {},
    "gemma3_text": {},
}


def _rounded(value: Any) -> Any:
    """Return settings whose numbers have the digits of float32."""
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(each) for each in value]
    return f"{value:.6g}" if isinstance(value, float) else value


def _settings(config: NetworkConfig) -> Any:
    return _rounded(dataclasses.asdict(dataclasses.replace(config, quant_algo=None, quant_bits=None)))


def _arrays(network: Network) -> dict[str, Any]:
    found = {"embedding": network.embedding.to_float32(), "norm": network.final_norm}
    found["head"] = network.lm_head.to_float32()
    for index in range(network.config.num_hidden_layers):
        layer = vars(network.layer(index))
        (layer["qkv"],) = layer["qkv"]
        for name, part in layer.items():
            if hasattr(part, "to_float32"):
                found[f"{index}.{name}"], found[f"{index}.{name}.bias"] = part.to_float32(), part.bias
            else:
                found[f"{index}.{name}"] = part
    return found


@pytest.mark.parametrize("name", FAMILIES)
def test_a_converted_family_is_the_network_that_it_was(name: str, tmp_path: Path) -> None:
    save_family(name, tmp_path / "checkpoint")
    change_config(tmp_path / "checkpoint", **FAMILIES[name])
    path = convert(tmp_path / "checkpoint", tmp_path / "network.gguf")
    mine = open_network(translate(path, tmp_path / "cache"), 256).read()
    theirs = open_network(tmp_path / "checkpoint", 256).read()
    assert _settings(mine.config) == _settings(theirs.config)
    arrays, wanted = _arrays(mine), _arrays(theirs)
    assert arrays.keys() == wanted.keys()
    for key, values in wanted.items():
        exact = 1e-6 if name.startswith("gemma") and "norm" in key else 0  # 1 was added and subtracted
        if values is None:
            assert arrays[key] is None, key
        else:
            np.testing.assert_allclose(arrays[key], values, rtol=0, atol=exact, err_msg=key)


HALVES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
DIGESTS = {  # of gguf 0.19, dequantize + 0.0
    "Q4_0": "b4bf09c575962e1f",
    "Q4_1": "dad153fe6bf21c2d",
    "Q5_0": "834c480f5d3f8b08",
    "Q5_1": "be8ef2ccc45bc34a",
    "Q8_0": "b04147af2bd013ae",
    "Q4_K": "1800f66cec20c2aa",
    "Q5_K": "6aaa3e4162c7ad83",
    "Q6_K": "0892436f52556e18",
}


def test_blocks_have_the_values_of_llama_cpp() -> None:
    rng = np.random.default_rng(0)
    for kind, digest in DIGESTS.items():
        data = rng.integers(0, 256, (6, 2 * STORED_TYPES[kind].num_bytes), dtype=np.uint8)
        blocks = data.reshape(-1, STORED_TYPES[kind].num_bytes)
        for place in HALVES.get(kind, (0,)):
            numbers = rng.normal(size=(len(blocks), 1)).astype("<f2")
            blocks[:, place : place + 2] = numbers.view(np.uint8)
        linear = linear_of(kind, data)
        assert linear.bits == int(kind[1])
        units, levels = linear.short_scales()
        assert units.dtype == np.float16 and (levels is not None) == kind.endswith("K")
        shared = np.repeat(units.astype(np.float32), linear.scale.shape[1] // units.shape[2], axis=2)
        kinds = [linear.scale] if linear.offset is None else [linear.scale, linear.offset]
        assert np.array_equal(shared if levels is None else shared * levels, np.stack(kinds, axis=1))
        values = dequantized(kind, data) + np.float32(0)
        assert hashlib.sha256(values.tobytes()).hexdigest()[:16] == digest, kind


def test_blocks_stay_blocks_and_their_rows_are_put_back(tmp_path: Path) -> None:
    save_family("llama-biases", tmp_path / "checkpoint")
    whole = open_gguf(convert(tmp_path / "checkpoint", tmp_path / "whole.gguf"))
    rng = np.random.default_rng(0)
    tensors: dict[str, Any] = {name: tensor.read() for name, tensor in whole.tensors.items()}
    del tensors["output.weight"]
    for name, kind, scale in (("blk.0.attn_q.weight", "Q8_0", 0), ("token_embd.weight", "Q4_K", 0)):
        shape = tensors[name].shape
        stored = STORED_TYPES[kind]
        data = rng.integers(0, 64, (shape[0], shape[1] // stored.block * stored.num_bytes), dtype=np.uint8)
        data.reshape(-1, stored.num_bytes)[:, scale : scale + 2] = np.array([1], "<f2").view(np.uint8)
        tensors[name] = Stored(kind, shape, data.tobytes())
    metadata = {**whole.metadata}
    path = write_gguf(tmp_path / "mixed.gguf", metadata, tensors)
    network = open_network(translate(path, tmp_path / "cache"), 256).read()
    raw = open_gguf(path).tensors
    rows = dequantized("Q8_0", raw["blk.0.attn_q.weight"].read())
    heads = rows.reshape(8, 16, 2, 256)  # 8 heads of 16 pairs
    back = np.concatenate([heads[:, :, 0], heads[:, :, 1]], axis=1).reshape(256, 256)
    query, others = network.layer(0).qkv
    np.testing.assert_array_equal(query.to_float32(), back)
    assert query.is_integer and not others.is_integer
    embedding = dequantized("Q4_K", raw["token_embd.weight"].read())
    np.testing.assert_array_equal(network.embedding.to_float32(), embedding.astype(np.float16))
    np.testing.assert_array_equal(network.lm_head.to_float32(), embedding)


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        ("llama", {}, "positions are scaled by an unknown table"),
        ("qwen2", {"general.architecture": "mamba"}, "general.architecture='mamba'; supported: llama, qwen2"),
        ("qwen2", {"general.architecture": None}, "general.architecture=''; supported"),
        ("qwen2", {"general.architecture": 7}, "general.architecture=7"),
        ("qwen2", {"qwen2.expert_count": 8}, "settings that are not read: expert_count=8"),
        ("qwen2", {"qwen2.block_count": 0}, "block_count=0"),
        ("qwen2", {"qwen2.block_count": np.array([1, 2], np.int32)}, "layers differ in block_count"),
        ("qwen2", {"qwen2.rope.scaling.type": "longrope", "qwen2.rope.scaling.factor": 2.0}, "'longrope'"),
        ("qwen2", {"qwen2.attention.value_length": 16}, "value_length=16"),
        ("qwen2", {"tokenizer.ggml.tokens": ["a", "b"]}, "has 2 tokens, and token_embd.weight 512 rows"),
        ("qwen3", {"qwen3.rope.dimension_count": 32}, "rope.dimension_count=32"),
        ("olmo2", {"olmo2.attention.sliding_window": 64}, "not read: attention.sliding_window=64"),  # OLMo 3
        ("gemma3_text", {"gemma3.attention.sliding_window": None}, "attention.sliding_window"),
    ],
)
def test_a_network_that_is_not_computed_is_refused(
    family: str, changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    save_family(family, tmp_path / "checkpoint")
    path = convert(tmp_path / "checkpoint", tmp_path / "network.gguf", **changes)
    with pytest.raises(CheckpointError, match=words):
        config_of(open_gguf(path))
    with pytest.raises(CheckpointError, match=words):
        translate(path, tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("[!.]*"))


def test_a_tensor_without_a_place_is_refused(tmp_path: Path) -> None:
    save_family("qwen2", tmp_path / "checkpoint")
    whole = open_gguf(convert(tmp_path / "checkpoint", tmp_path / "whole.gguf"))
    tensors = {name: tensor.read() for name, tensor in whole.tensors.items()}
    tensors["blk.0.ffn_gate_inp.weight"] = tensors["blk.0.attn_norm.weight"]
    path = write_gguf(tmp_path / "other.gguf", whole.metadata, tensors)
    with pytest.raises(CheckpointError, match=r"'blk\.0\.ffn_gate_inp\.weight' has no place"):
        open_network(translate(path, tmp_path / "cache"))


@pytest.mark.parametrize(("layers", "scalar"), [(46, 32), (26, 64)])
def test_only_the_largest_gemma_scales_queries_by_the_features_of_a_head(
    layers: int, scalar: int, tmp_path: Path
) -> None:
    save_family("gemma2", tmp_path / "checkpoint")
    path = convert(tmp_path / "checkpoint", tmp_path / "network.gguf", **{"gemma2.block_count": layers})
    assert config_of(open_gguf(path))["query_pre_attn_scalar"] == scalar
