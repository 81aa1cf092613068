"""Compile a small network, and compute logits with its engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from build.networks.network import Network, NetworkConfig
from build.networks.weight_only import apply_quantization
from build.openvino.engine import EngineSettings, write_engine
from pipelines.executor.engine import Engine
from pipelines.executor.step import Chunk, pack
from pipelines.manifest import EngineFiles

NUM_BLOCKS = 18
BLOCKS = tuple(range(1, NUM_BLOCKS))

Logits = npt.NDArray[np.float32]
TokenIds = npt.NDArray[np.int32]


def attention_for(config: NetworkConfig) -> str:
    """Return the attention that a recipe needs for a network: OpenVINO's wherever it can compute it."""
    return "openvino" if config.own_attention_reason is None else "draftproof"


def compile_network(
    folder: Path,
    network: Network,
    quantization: str,
    attention: str = "openvino",
    kv_cache_dtype: str = "float32",
    linear: str = "openvino",
) -> Engine:
    """Write an engine to a folder and load it.

    Args:
        folder: Created; must not exist.
        network: As read from a checkpoint.
        quantization: ``none`` or ``checkpoint``; ``int8`` or ``int4``, with which the output head becomes
            INT8 and activations are rounded.
        attention: ``openvino`` or ``draftproof``.
        kv_cache_dtype: ``float32``, ``float16`` or ``int8``.
        linear: What multiplies integer weights, ``openvino`` or ``draftproof``.
    """
    folder.mkdir(parents=True)
    tokenizer = folder / "tokenizer.json"
    tokenizer.write_text("{}", encoding="utf-8")
    is_rounded = quantization in ("int8", "int4")
    settings = EngineSettings(
        role="target",
        recipe="families",
        quantization=quantization,
        kv_cache_dtype=kv_cache_dtype,
        num_threads=2,
        end_ids=(0,),
        fingerprint="0" * 64,
        origin={},
        dynamic_quantization=is_rounded,
        attention=attention,
        linear=linear,
    )
    network = apply_quantization(network, quantization, "int8" if is_rounded else "checkpoint")
    write_engine(folder / "engine", network, tokenizer, settings)
    return Engine(EngineFiles(folder / "engine"), NUM_BLOCKS)


def piece(engine: Engine, ids: TokenIds, start: int, num_logits: int, *, as_rows: bool) -> Chunk:
    """Return consecutive tokens of the text that the engine computes; see ``Chunk``."""
    slot = 0 if engine.config.state_bytes else None
    return Chunk(ids, start, BLOCKS, as_rows=as_rows, num_logits=num_logits, slot=slot)


def step(engine: Engine, *chunks: Chunk) -> Logits:
    """Compute one step, [rows, vocab]."""
    return engine.step(pack(chunks, engine.config.kv_block_size)).copy()


def log_softmax(logits: Logits) -> npt.NDArray[np.float64]:
    """Return log-probabilities, [rows, vocab]."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def prompt_logits(engine: Engine, ids: TokenIds, num_first: int) -> Logits:
    """Compute the logits of a text in two chunks, [tokens, vocab].

    Args:
        engine: The engine.
        ids: The text; at most 544 tokens.
        num_first: Tokens of the first chunk.
    """
    rest = len(ids) - num_first
    first = piece(engine, ids[:num_first], 0, num_first, as_rows=False)
    second = piece(engine, ids[num_first:], num_first, rest, as_rows=False)
    return np.concatenate([step(engine, first), step(engine, second)])


def decoded_rows(engine: Engine, ids: TokenIds, num_prompt: int, rows: int, *others: Chunk) -> Logits:
    """Compute the logits after a prompt, as verification does: so many tokens a step, each a row.

    Args:
        engine: The engine.
        ids: Prompt and further tokens, whose number is a multiple of ``rows``.
        num_prompt: Tokens of the prompt.
        rows: Rows of each step.
        *others: What else each step computes.
    """
    step(engine, piece(engine, ids[:num_prompt], 0, 1, as_rows=False))
    found = []
    for start in range(num_prompt, len(ids), rows):
        chunk = piece(engine, ids[start : start + rows], start, rows, as_rows=True)
        found.append(step(engine, chunk, *others)[:rows])
    return np.concatenate(found)


def greedy_tokens(engine: Engine, prompt: TokenIds, count: int) -> list[int]:
    """Decode greedily, one row a step."""
    logits = step(engine, piece(engine, prompt, 0, 1, as_rows=False))
    tokens = [int(logits[0].argmax())]
    while len(tokens) < count:
        last = np.array(tokens[-1:], np.int32)
        chunk = piece(engine, last, len(prompt) + len(tokens) - 1, 1, as_rows=True)
        tokens.append(int(step(engine, chunk)[0].argmax()))
    return tokens
