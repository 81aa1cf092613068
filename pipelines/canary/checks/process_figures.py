"""Read memory, CPU time and output tokens of both pairs' processes from a server's metrics port."""

from __future__ import annotations

import re
from collections.abc import Mapping

import httpx

from pipelines.canary.judge.resources import Sample, Taken
from pipelines.deploy.triton.pair_record import PairRecord
from pipelines.errors import CanaryError

RESIDENT_BYTES = "draftproof_process_resident_memory_bytes"
CPU_SECONDS = "draftproof_process_cpu_seconds_total"
CONTROL_CPU_SECONDS = "draftproof_control_cpu_seconds_total"
OUTPUT_TOKENS = "draftproof_output_tokens_total"

_LINE = re.compile(
    rf"^({RESIDENT_BYTES}|{CPU_SECONDS}|{CONTROL_CPU_SECONDS}|{OUTPUT_TOKENS})"
    r'{(?![^}]*\bsource="control")[^}]*?\bmodel="([^"]*)"[^}]*} (\S+)$'
)
_TIMEOUT_S = 5.0


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
        text = httpx.get(metrics_url, trust_env=False, timeout=_TIMEOUT_S).raise_for_status().text
        figures: dict[tuple[str, str], float] = {}
        for line in text.splitlines():
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
