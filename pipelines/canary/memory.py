"""What a pair takes of the machine's memory when it is loaded, and what is left of it.

On the embedded runtime the need is estimated from each ``engine.json``: the cache of keys and values, which a
process allocates whole, twice the weights (OpenVINO lays out INT8 weights anew, and holds both while it does)
and the process itself. Against it stands what the server says it may have. On TensorRT-LLM both figures are
those of ``build/memory_plan.py``, whose workspace is an estimate too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from pipelines.canary.candidate import Pair
from pipelines.errors import CanaryError

# Python, OpenVINO, its kernels, activations. A loop with tiny engines took 166 MiB in all; the demo pair's
# took 1086 MiB after loading, 1087 by this account.
PROCESS_BYTES = 250 << 20
_KV_BYTES = {"float32": 4, "float16": 2}
_TIMEOUT_S = 10.0

FIGURE = "draftproof_memory_available_bytes"


@dataclass(frozen=True)
class Memory:
    """Bytes on one device.

    Attributes:
        device: ``host``, or the number of a GPU.
        needed: By the models that would be loaded.
        available: Before they are.
    """

    device: str
    needed: int
    available: int


def memory_of(candidate: Pair, loaded: Sequence[Pair], free_bytes: Callable[[], int]) -> tuple[Memory, ...]:
    """What loading a pair takes and finds.

    Args:
        candidate: To be loaded.
        loaded: Those that are.
        free_bytes: See ``free_bytes``; asked on the embedded runtime.

    Raises:
        CanaryError: An engine does not say what it takes, or the server what it has.
    """
    if candidate.loads_at_start:  # so it is loaded
        return ()
    if candidate.runtime == "embedded":
        return (Memory("host", _embedded_bytes(candidate), free_bytes()),)
    usable = min(pair.gpu_usable_bytes for pair in (candidate, *loaded))
    return tuple(
        Memory(device, needed, usable - sum(pair.gpu_bytes.get(device, 0) for pair in loaded))
        for device, needed in candidate.gpu_bytes.items()
    )


def free_bytes(metrics_url: str) -> int:
    """What a server says it may have of the host's memory beside what it has.

    Only the server knows: the controller may run in a container with limits of its own.

    Args:
        metrics_url: ``http://host:port/metrics``.

    Raises:
        CanaryError: It does not say.
    """
    try:
        text = httpx.get(metrics_url, trust_env=False, timeout=_TIMEOUT_S).raise_for_status().text
        return int(min(float(value) for value in re.findall(rf"^{FIGURE}{{.*}} (\S+)$", text, re.MULTILINE)))
    except (httpx.HTTPError, ValueError) as error:
        raise CanaryError(
            "the server does not say how much memory it may have",
            values=f"{metrics_url}: {error!r}",
            limit=f"{FIGURE}, as its model 'router' publishes it",
            remedy="give the address of a server of this version whose models are loaded",
        ) from None


def _embedded_bytes(pair: Pair) -> int:
    engines = {"draft": Path(pair.draft_engine_dir), "target": Path(pair.target_engine_dir)}
    taken = {role: _engine_bytes(path, pair.num_kv_blocks[role]) for role, path in engines.items()}
    # The loop holds both engines; a target alone is loaded a second time.
    num_others = len(pair.models) - 1
    return taken["draft"] + (1 + num_others) * taken["target"] + len(pair.models) * PROCESS_BYTES


def _engine_bytes(directory: Path, num_kv_blocks: int) -> int:
    path = directory / "engine.json"
    try:
        engine = json.loads(path.read_text(encoding="utf-8"))
        per_token = 2 * engine["num_layers"] * engine["num_kv_heads"] * engine["head_size"]
        cache = num_kv_blocks * engine["kv_block_size"] * per_token * _KV_BYTES[engine["kv_cache_dtype"]]
        return int(cache + 2 * engine["weight_bytes_per_step"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CanaryError(
            "an engine does not say how much memory it takes",
            values=f"{path}: {error!r}",
            limit="engine.json as 'make engines' writes it",
            remedy="run 'make engines' for the recipe",
        ) from None
