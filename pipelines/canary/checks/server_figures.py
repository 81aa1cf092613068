"""Read memory and CPU time from a server's metrics."""

from __future__ import annotations

import re
from collections.abc import Mapping

import httpx

from pipelines.canary.judge.resources import Sample, Taken
from pipelines.deploy.triton.pair_record import PairRecord
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
    """Return the figures of a pair, without tokens of the target alone and their CPU time."""
    loop = pair.speculative_model
    return Taken(
        figures[RESIDENT_BYTES, loop],
        figures[CPU_SECONDS, loop] - figures.get((CONTROL_CPU_SECONDS, loop), 0.0),
        figures[OUTPUT_TOKENS, loop],
    )
