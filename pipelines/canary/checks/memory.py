"""Compare the memory that a pair needs with the memory that is available.

On the embedded runtime the need is estimated from the engines (``pipelines/engine_memory.py``), and the
server publishes how much memory is available. On TensorRT-LLM both figures come from
``build/tensorrt_llm/memory_plan.py``, whose workspace is an estimate too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from pipelines.deploy.triton.pair_record import PairRecord
from pipelines.engine_memory import pair_bytes
from pipelines.errors import CanaryError, EngineLoadError

_TIMEOUT_S = 10.0

FIGURE = "draftproof_memory_available_bytes"


@dataclass(frozen=True)
class Memory:
    """Memory of one device.

    Attributes:
        device: ``host``, or the number of a GPU.
        needed: Bytes that the models to load need.
        available: Bytes that are available before loading.
    """

    device: str
    needed: int
    available: int


def memory_of(
    candidate: PairRecord, loaded: Sequence[PairRecord], free_bytes: Callable[[], int]
) -> tuple[Memory, ...]:
    """Compute needed and available memory for loading a pair.

    Args:
        candidate: Pair to load.
        loaded: Pairs that are loaded.
        free_bytes: Returns the available bytes of the host (``free_bytes``); used on the embedded runtime.

    Raises:
        CanaryError: An engine's need or the server's available memory cannot be read.
    """
    if candidate.loads_at_start:  # it is loaded already
        return ()
    if candidate.runtime == "embedded":
        return (Memory("host", _embedded_bytes(candidate), free_bytes()),)
    usable = min(pair.gpu_usable_bytes for pair in (candidate, *loaded))
    return tuple(
        Memory(device, needed, usable - sum(pair.gpu_bytes.get(device, 0) for pair in loaded))
        for device, needed in candidate.gpu_bytes.items()
    )


def free_bytes(metrics_url: str) -> int:
    """Read how many more bytes of host memory a server may use.

    The server has to measure it, because the controller may run in a container with other limits.

    Args:
        metrics_url: ``http://host:port/metrics``.

    Raises:
        CanaryError: The server does not publish it.
    """
    try:
        text = httpx.get(metrics_url, trust_env=False, timeout=_TIMEOUT_S).raise_for_status().text
        return int(min(float(value) for value in re.findall(rf"^{FIGURE}{{.*}} (\S+)$", text, re.MULTILINE)))
    except (httpx.HTTPError, ValueError) as error:
        raise CanaryError(
            "the available memory of the server cannot be read",
            values=f"{metrics_url}: {error!r}",
            limit=f"{FIGURE}, which the model 'router' publishes",
            remedy="give the address of a server of this version whose models are loaded",
        ) from None


def _embedded_bytes(pair: PairRecord) -> int:
    try:
        engines = Path(pair.draft_engine_dir), Path(pair.target_engine_dir)
        return pair_bytes(*engines, pair.num_kv_blocks)
    except EngineLoadError as error:
        raise CanaryError(error.what, values=error.values, limit=error.limit, remedy=error.remedy) from None
