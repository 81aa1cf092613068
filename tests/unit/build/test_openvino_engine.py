"""Tests of engines against float64 numpy; test_hugging_face.py compares families with transformers."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
import pytest

from build.checkpoints.tensor_file import Tensor, read_tensors
from build.networks.network import Network
from build.networks.weight_only import apply_quantization
from build.openvino import operations
from build.openvino.engine import EngineSettings, write_engine
from build.recipe import EngineRecipe, KvCache
from pipelines.errors import EngineBuildError
from pipelines.executor.engine import Engine
from pipelines.executor.loading import load_engine
from pipelines.executor.step import Chunk, pack
from pipelines.manifest import EngineFiles
from tests.support.checkpoints import LLAMA3_SCALING, QUANTIZERS, make_checkpoint, mean_kl, reference_logits
from tests.support.compiler import ATTENTIONS, needs_compiler

LENGTH = 80

# Tolerances are for logits whose largest is about 15; they cover float32 summation.
EXACT = 1e-4

SHAPES: dict[str, dict[str, Any]] = {
    "gqa": {},
    "mha": {"num_key_value_heads": 4},
    "untied": {"share_embedding_table": False},
    "head 32": {"head_size": 32, "num_attention_heads": 8, "num_key_value_heads": 4},
    "head 128": {"head_size": 128, "num_attention_heads": 4, "num_key_value_heads": 1},
    "llama3 rope": {"rotary_base": 500000.0, "rotary_scaling": LLAMA3_SCALING},
    "linear rope": {"rotary_scaling": {"type": "linear", "factor": 4.0}},
    "biases": {"architecture": "Qwen2ForCausalLM", "attn_bias": True},
    "odd sizes": {"hidden_size": 192, "intermediate_size": 320, "vocab_size": 2000, "norm_epsilon": 1e-3},
}

Logits = npt.NDArray[Any]


def token_ids(vocab_size: int = 2000, seed: int = 0) -> npt.NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, vocab_size, LENGTH).astype(np.int32)


def engine_of(
    directory: Path,
    network: Network,
    *,
    dynamic: bool = False,
    kv: str = "float32",
    attention: str = "openvino",
    linear: str = "openvino",
) -> Engine:
    tokenizer = directory / "tokenizer.json"
    tokenizer.write_text("{}", encoding="utf-8")
    quantization = "int8" if dynamic else "none"  # which rounds activations, or does not
    recipe = EngineRecipe(
        "", quantization, num_threads=2, attention=attention, linear=linear, kv_cache=KvCache(kv)
    )
    settings = EngineSettings("target", "test", recipe, (0,), "f" * 64)
    write_engine(directory / "engine", network, tokenizer, settings)
    return load_engine(EngineFiles(directory / "engine"), num_blocks=16)


def run(engine: Engine, tokens: npt.NDArray[np.int32], logits: int | None = None) -> Logits:
    """Return the logits of a text: a prompt of three quarters in two chunks, the rest in rows."""
    blocks = (3, 5, 9, 2)
    first, second = len(tokens) // 2, 3 * len(tokens) // 4
    parts = []
    for begin, end, rows in ((0, first, False), (first, second, False), (second, len(tokens), True)):
        chunk = Chunk(tokens[begin:end], begin, blocks, is_decode=rows, num_logits=end - begin)
        parts.append(engine.step(pack([chunk], engine.config.kv_block_size)).copy())
    return np.concatenate(parts)


def largest_error(reference: Logits, logits: Logits) -> float:
    assert logits.shape == reference.shape
    assert np.isfinite(logits).all()
    return float(np.abs(reference - logits).max())


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_unquantized_engine_matches_float64(shape: str, attention: str, tmp_path: Path) -> None:
    weights_dtype = {"mha": "F16", "untied": "F32"}.get(shape, "BF16")
    checkpoint = make_checkpoint(tmp_path / "checkpoint", weights_dtype=weights_dtype, **SHAPES[shape])
    engine = engine_of(tmp_path, checkpoint, attention=attention)
    logits = run(engine, token_ids())
    reference = reference_logits(checkpoint, token_ids())
    assert largest_error(reference, logits) < EXACT
    assert (reference.argmax(1) == logits.argmax(1)).all()


@pytest.mark.parametrize(("shape", "num_tables"), [("gqa", 1), ("untied", 2)])
def test_a_tied_engine_holds_its_table_once(shape: str, num_tables: int, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "checkpoint", weights_dtype="F32", **SHAPES[shape])
    engine_of(tmp_path, checkpoint)
    rows, columns = checkpoint.config.vocab_size, checkpoint.config.hidden_size
    tensors = read_tensors(tmp_path / "checkpoint" / "rank0.safetensors")
    weights = 4 * sum(tensor.size for tensor in tensors.values())
    size = (tmp_path / "engine" / "engine.bin").stat().st_size
    assert weights <= size < weights + 4 * rows * columns  # and constants of the graph
    network = (tmp_path / "engine" / "engine.xml").read_text(encoding="utf-8")
    assert len(re.findall(rf'<data element_type="f32" shape="{rows}, {columns}"', network)) == num_tables


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_rows_of_a_large_table_are_its_numbers_and_no_copy_is_made(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "LARGE_TABLE", 0)
    numbers = np.random.default_rng(0).standard_normal((300, 48)).astype(np.float32)
    bits = (numbers.view(np.uint32) >> 16).astype(np.uint16)
    halves = numbers.astype(np.float16) if dtype == "F16" else bits
    table = Tensor(dtype, halves.shape, halves)
    indices = operations.parameter("indices", [-1], ov.Type.i32)
    model = ov.Model([operations.rows(table, indices)], [indices])
    compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    asked = np.array([299, 0, 7, 7], np.int32)
    assert np.array_equal(compiled([asked])[0], table.to_float32()[asked])
    constants = [node for node in model.get_ops() if node.get_type_name() == "Constant"]
    assert {node.get_element_type() for node in constants if node.get_byte_size() == 300 * 48} == {ov.Type.u8}


@pytest.mark.parametrize("shape", ["gqa", "untied", "biases"])
def test_weight_only_checkpoint_runs_with_its_own_weights(shape: str, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "checkpoint", "W8A16", **SHAPES[shape])
    network = apply_quantization(checkpoint, "checkpoint", "checkpoint")
    logits = run(engine_of(tmp_path, network), token_ids())
    assert largest_error(reference_logits(checkpoint, token_ids()), logits) < EXACT


@pytest.mark.parametrize("algo", [None, "FP8"])
def test_int8_made_at_build_is_what_numpy_says(algo: str | None, tmp_path: Path) -> None:
    network = make_checkpoint(tmp_path / "checkpoint", algo)
    quantized = apply_quantization(network, "int8", "int8")
    logits = run(engine_of(tmp_path, quantized), token_ids())
    assert largest_error(reference_logits(quantized, token_ids()), logits) < EXACT
    assert largest_error(reference_logits(network, token_ids()), logits) > 0.001  # it was quantized


@pytest.mark.parametrize("algo", [None, "W8A16"])
def test_dynamic_quantization_stays_close(algo: str | None, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "checkpoint", algo)
    network = apply_quantization(checkpoint, "int8", "int8")
    logits = run(engine_of(tmp_path, network, dynamic=True), token_ids())
    # Random weights are the hard case: a flat distribution in which every error counts.
    assert mean_kl(reference_logits(network, token_ids()), logits) < 0.02


@needs_compiler
@pytest.mark.parametrize("shape", ["gqa", "untied", "biases", "odd sizes"])
def test_products_of_our_own_are_what_numpy_says_to_14_bits(shape: str, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "checkpoint", **SHAPES[shape])
    network = apply_quantization(checkpoint, "int8", "int8")
    logits = run(engine_of(tmp_path, network, dynamic=True, linear="draftproof"), token_ids())
    assert 1e-8 < mean_kl(reference_logits(network, token_ids()), logits) < 1e-5


@needs_compiler
@pytest.mark.parametrize("algo", ["W8A16", "W4A16_AWQ", "FP8"])
def test_a_checkpoints_own_weights_are_multiplied_as_openvino_does(algo: str, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "checkpoint", algo, hidden_size=256)
    network = apply_quantization(checkpoint, "checkpoint", "int8")
    logits = []
    for linear in ("openvino", "draftproof"):
        folder = tmp_path / linear
        folder.mkdir()
        logits.append(run(engine_of(folder, network, linear=linear), token_ids()))
    assert mean_kl(*logits) < (0.02 if algo == "W4A16_AWQ" else 1e-4)  # 4 bits: inputs rounded to 8 bits


@needs_compiler
@pytest.mark.parametrize("algo", ["W8A8_SQ_PER_CHANNEL", "W4A8_AWQ"])
def test_integers_whose_inputs_a_checkpoint_rounds_are_refused(algo: str, tmp_path: Path) -> None:
    network = make_checkpoint(tmp_path / "checkpoint", algo, hidden_size=256)
    with pytest.raises(EngineBuildError, match=r"checkpoint rounds; .*'linear: openvino'"):
        engine_of(tmp_path, network, linear="draftproof")


@pytest.mark.parametrize("algo", QUANTIZERS)
def test_quantization_none_multiplies_out_and_leaves_inputs_alone(algo: str, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "checkpoint", algo, hidden_size=256)
    network = apply_quantization(checkpoint, "none", "checkpoint")
    assert all(linear.input_quantization is None for linear in network.layer(0).linears())
    stored = checkpoint.layer(1).proj
    assert np.array_equal(network.layer(1).proj.to_float32(), stored.to_float32())
    logits = run(engine_of(tmp_path, network), token_ids())
    assert largest_error(reference_logits(network, token_ids()), logits) < EXACT


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_half_precision_cache_stays_close(attention: str, tmp_path: Path) -> None:
    network = make_checkpoint(tmp_path / "checkpoint")
    logits = run(engine_of(tmp_path, network, kv="float16", attention=attention), token_ids())
    error = largest_error(reference_logits(network, token_ids()), logits)
    assert EXACT < error < 0.1  # above: the cache really is in half precision


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_number_of_wanted_rows_does_not_change_their_bits(quantization: str, tmp_path: Path) -> None:
    network = make_checkpoint(tmp_path / "checkpoint", hidden_size=256)
    head = "int8" if quantization == "int8" else "checkpoint"
    engine = engine_of(tmp_path, apply_quantization(network, quantization, head), dynamic=True)
    inputs = pack([Chunk(token_ids(), 0, (1, 2, 3), is_decode=False, num_logits=LENGTH)], 32)
    everything = engine.step(inputs).copy()
    for rows in ([7], [LENGTH - 1], [3, 3], [50, 2, 9], list(range(0, LENGTH, 7))):
        some = engine.step(replace(inputs, logits_rows=np.array(rows, np.int32)))
        assert np.array_equal(some, everything[rows])


def test_engine_description(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "checkpoint")
    network = apply_quantization(checkpoint, "int8", "int8")
    engine_of(tmp_path, network, dynamic=True)
    description = json.loads((tmp_path / "engine" / "engine.json").read_text(encoding="utf-8"))
    weights = 2 * ((4 + 2 * 2) * 64 * 128 + 256 * 128 + 3 * 256 * 128)
    norms = 5 * 128
    assert description["num_parameters"] == weights + norms + 2048 * 128
    scales = 2 * ((4 + 2 * 2) * 64 + 128 + 256 + 256 + 128) + 2048
    assert description["weight_bytes_per_step"] == weights + 2048 * 128 + 4 * (scales + norms)
    assert description["compile_properties"]["DYNAMIC_QUANTIZATION_GROUP_SIZE"] == "128"
    assert description["compile_properties"]["INFERENCE_PRECISION_HINT"] == "f32"
    # Identical matrices would be stored once, and a step would read less than engine.json says.
    stored = (tmp_path / "engine" / "engine.bin").stat().st_size
    weights_and_embedding = description["weight_bytes_per_step"] + 2 * 2048 * 128
    assert weights_and_embedding - 16 * 1024 <= stored < 1.02 * weights_and_embedding


@pytest.mark.parametrize("algo", [None, "FP8"])
def test_weights_other_than_int8_are_read_as_float32(algo: str | None, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "checkpoint", algo, share_embedding_table=False)
    engine_of(tmp_path, checkpoint)
    description = json.loads((tmp_path / "engine" / "engine.json").read_text(encoding="utf-8"))
    embedding = 2048 * 128
    assert description["weight_bytes_per_step"] == 4 * (description["num_parameters"] - embedding)
    assert description["compile_properties"]["DYNAMIC_QUANTIZATION_GROUP_SIZE"] == "0"


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    network = make_checkpoint(tmp_path / "checkpoint")

    def failing(index: int) -> Any:
        raise OSError(28, "No space left on device")

    settings = EngineSettings("draft", "test", EngineRecipe("", num_threads=2), (0,), "f" * 64)
    with pytest.raises(EngineBuildError, match="No space left"):
        write_engine(
            tmp_path / "engines" / "draft-1",
            replace(network, layer=failing),
            tmp_path / "checkpoint" / "tokenizer.json",
            settings,
        )
    assert list((tmp_path / "engines").iterdir()) == []
