"""Read memory and CPU time from a server's metrics, and compare what a pair needs with what is available.

On the embedded runtime the need is estimated from the engines (``pipelines/engine_memory.py``), and the
server publishes how much memory is available. On TensorRT-LLM both figures come from
``build/tensorrt_llm/memory_plan.py``, whose workspace is an estimate too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from pipelines.canary.judge.resources import Sample, Taken
from pipelines.deploy.triton.pair_record import PairRecord
from pipelines.engine_memory import pair_bytes
from pipelines.errors import CanaryError

_TIMEOUT_S = 10.0

FIGURE = "draftproof_memory_available_bytes"
RESIDENT_BYTES = "draftproof_process_resident_memory_bytes"
CPU_SECONDS = "draftproof_process_cpu_seconds_total"
CONTROL_CPU_SECONDS = "draftproof_control_cpu_seconds_total"
OUTPUT_TOKENS = "draftproof_output_tokens_total"

_LINE = re.compile(
    rf"^({RESIDENT_BYTES}|{CPU_SECONDS}|{CONTROL_CPU_SECONDS}|{OUTPUT_TOKENS})"
    r'{(?![^}]*\bsource="control")[^}]*?\bmodel="([^"]*)"[^}]*} (\S+)$'
)


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
        CanaryError: The server's available memory cannot be read.
        EngineLoadError: An engine's need cannot be read.
    """
    if candidate.loads_at_start:  # it is loaded already
        return ()
    if candidate.runtime == "embedded":
        engines = Path(candidate.draft_engine_dir), Path(candidate.target_engine_dir)
        return (Memory("host", pair_bytes(*engines, candidate.num_kv_blocks), free_bytes()),)
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
        found = re.findall(rf"^{FIGURE}{{.*}} (\S+)$", _read(metrics_url), re.MULTILINE)
        return int(min(map(float, found)))
    except (httpx.HTTPError, ValueError) as error:
        raise CanaryError(
            "the available memory of the server cannot be read",
            values=f"{metrics_url}: {error!r}",
            limit=f"{FIGURE}, which the model 'router' publishes",
            remedy="give the address of a server of this version whose models are loaded",
        ) from None


def read_sample(metrics_url: str, candidate: PairRecord, stable: PairRecord, now_s: float) -> Sample:
    """Read one sample of both pairs.

    Args:
        metrics_url: ``http://host:port/metrics``.
        candidate: Candidate, which is loaded.
        stable: Pair in service.
        now_s: Unix time.

    Raises:
        CanaryError: The server does not answer, or a metric of a process is missing.
    """
    try:
        figures: dict[tuple[str, str], float] = {}
        for line in _read(metrics_url).splitlines():
            if found := _LINE.match(line):
                key = found[1], found[2]
                figures[key] = figures.get(key, 0.0) + float(found[3])  # sums tokens over the label source
        return Sample(now_s, _taken(figures, candidate), _taken(figures, stable))
    except (httpx.HTTPError, ValueError, KeyError) as error:
        raise CanaryError(
            "memory and CPU time of both pairs cannot be read",
            values=f"{metrics_url}: {error!r}",
            limit=f"{RESIDENT_BYTES}, {CPU_SECONDS} and {OUTPUT_TOKENS} for each model",
            remedy="check the metrics port of the server, which must have this version",
        ) from None


def _read(metrics_url: str) -> str:
    return httpx.get(metrics_url, trust_env=False, timeout=_TIMEOUT_S).raise_for_status().text


def _taken(figures: Mapping[tuple[str, str], float], pair: PairRecord) -> Taken:
    """Sum the figures of a pair; NVIDIA's engines run in Triton's process and publish none.

    The loop's process also answers by the target alone: those tokens and their CPU time do not count.
    """
    loop = pair.speculative_model
    others = {model for model in pair.models if (RESIDENT_BYTES, model) in figures} - {loop}
    return Taken(
        figures[RESIDENT_BYTES, loop] + sum(figures[RESIDENT_BYTES, model] for model in others),
        figures[CPU_SECONDS, loop] - figures.get((CONTROL_CPU_SECONDS, loop), 0.0),
        figures[OUTPUT_TOKENS, loop],
    )
