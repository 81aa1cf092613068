"""Compile a network outside of a recipe, and compute logits with its engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from build.networks.network import Network, NetworkConfig
from build.networks.weight_only import apply_quantization
from build.openvino.engine import EngineSettings, write_engine
from build.recipe import EngineRecipe, KvCache
from pipelines.executor.engine import Engine
from pipelines.executor.loading import load_engine
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
    chosen: dict[str, Any] = {"quantization": quantization, "attention": attention, "linear": linear}
    cache: Any = kv_cache_dtype
    engine = EngineRecipe("none", num_threads=2, kv_cache=KvCache(cache), **chosen)
    settings = EngineSettings("target", "families", engine, (0,), "0" * 64)
    network = apply_quantization(network, quantization, "int8" if is_rounded else "checkpoint")
    write_engine(folder / "engine", network, tokenizer, settings)
    return load_engine(EngineFiles(folder / "engine"), NUM_BLOCKS)


def piece(engine: Engine, ids: TokenIds, start: int, num_logits: int, *, is_decode: bool) -> Chunk:
    """Return consecutive tokens of the text that the engine computes; see ``Chunk``."""
    slot = 0 if engine.config.state_bytes else None
    return Chunk(ids, start, BLOCKS, is_decode=is_decode, num_logits=num_logits, slot=slot)


def step(engine: Engine, *chunks: Chunk) -> Logits:
    """Compute one step, [rows, vocab]."""
    return engine.step(pack(chunks, engine.config.kv_block_size)).copy()


def log_softmax(logits: Logits) -> npt.NDArray[np.float64]:
    """Return log-probabilities, [rows, vocab]."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))
