"""Estimates the memory that engines of the embedded runtime take in the processes of a server.

A process allocates its KV caches at its start, and holds the weights once: OpenVINO's kernels in a copy of
their own, whose original leaves memory (docs/decisions/engines.md); products of our own in the original.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pipelines.errors import EngineLoadError

PROCESS_BYTES = 250 << 20
"""Python, OpenVINO and activations of a process.

With it, the process of a pair in INT8 was estimated at 2.28 GB. It used 2.22.
"""

MAX_LOGGED_ROWS = 17
"""Rows of a request in a step of a network with recurrent layers: a token and sixteen drafted ones."""

_SMALL_NETWORKS_BYTES = {"draft": 7 << 20, "target": 11 << 20}
"""Bytes per layer of all networks of fixed shapes (``executor.engine``), of Qwen2.5 0.5B and 1.5B."""

_STATES_OF_A_PLACE = 3  # in the loop, of a request to the target alone, and kept for later
_NUMBER_BYTES = {"float32": 4, "float16": 2, "int8": 1}
_SCALE_BYTES = {"float32": 0, "float16": 0, "int8": 8}  # scale and zero point of a token in a head


def block_bytes(num_tokens: int, num_layers: int, num_kv_heads: int, head_size: int, dtype: str) -> int:
    """Return the bytes of a block of a KV cache, all layers together."""
    key_bytes = head_size * _NUMBER_BYTES[dtype] + _SCALE_BYTES[dtype]
    return 2 * num_tokens * num_layers * num_kv_heads * key_bytes


def states_bytes(slot_bytes: int, max_batch_size: int) -> int:
    """Return the bytes of a server's recurrent states, by those of a request."""
    return _STATES_OF_A_PLACE * max_batch_size * slot_bytes


def read_sizes(engine: Path) -> tuple[int, int, int]:
    """Read the bytes of an engine's networks, a block of its KV cache, and a request's recurrent states.

    Args:
        engine: Directory of the engine.

    Raises:
        EngineLoadError: ``engine.json`` or ``engine.bin`` cannot be read.
    """
    path = engine / "engine.json"
    try:
        sizes = json.loads(path.read_text(encoding="utf-8"))
        block = block_bytes(
            sizes["kv_block_size"],
            sizes["num_layers"],
            sizes["num_kv_heads"],
            sizes["head_size"],
            sizes["kv_cache_dtype"],
        )
        slot = sizes.get("state_bytes", 0) + MAX_LOGGED_ROWS * sizes.get("log_bytes", 0)
        networks = (engine / "engine.bin").stat().st_size
        if sizes.get("linear") == "draftproof":
            networks += sizes["num_layers"] * _SMALL_NETWORKS_BYTES[sizes["role"]]
        return networks, block, slot
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EngineLoadError(
            f"the memory need of an engine cannot be read from {path} and engine.bin: {error!r}",
            "run 'draftproof engines' for the recipe",
        ) from None


def pair_bytes(engines: Mapping[str, Path], num_kv_blocks: Mapping[str, int], max_batch_size: int) -> int:
    """Return the bytes that the process of a pair takes.

    Args:
        engines: Directories of the engines by role.
        num_kv_blocks: Blocks of the KV caches by role.
        max_batch_size: Most concurrent requests.

    Raises:
        EngineLoadError: See ``read_sizes``.
    """
    taken = PROCESS_BYTES
    for role, engine in engines.items():
        networks, block, slot = read_sizes(engine)
        taken += networks + num_kv_blocks[role] * block + states_bytes(slot, max_batch_size)
    return taken
