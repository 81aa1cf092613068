"""Reads memory, CPU time and output tokens of a server's engine from its metrics."""

from __future__ import annotations

import re
from collections import Counter

import httpx

from pipelines.canary.judge.resources import Taken
from pipelines.errors import CanaryError

_TIMEOUT_S = 10.0

RESIDENT_BYTES = "draftproof_process_resident_memory_bytes"
CPU_SECONDS = "draftproof_process_cpu_seconds_total"
CONTROL_CPU_SECONDS = "draftproof_control_cpu_seconds_total"
OUTPUT_TOKENS = "draftproof_output_tokens_total"

# Without the tokens of the target alone, whose CPU time is subtracted.
_LINE = re.compile(
    rf"^({RESIDENT_BYTES}|{CPU_SECONDS}|{CONTROL_CPU_SECONDS}|{OUTPUT_TOKENS})"
    r'{(?![^}]*\bsource="control")[^}]*?\bmodel="speculative"[^}]*} (\S+)$',
    re.MULTILINE,
)


def read_taken(metrics_url: str) -> Taken:
    """Read what an engine's process has used so far.

    Args:
        metrics_url: ``http://host:port/metrics``.

    Raises:
        CanaryError: The server does not answer, or a metric is missing.
    """
    try:
        text = httpx.get(metrics_url, trust_env=False, timeout=_TIMEOUT_S).raise_for_status().text
        figures: Counter[str] = Counter()
        for name, value in _LINE.findall(text):
            figures[name] += float(value)  # type: ignore[assignment]  # sums tokens over the label source
        cpu_s = figures[CPU_SECONDS] - figures[CONTROL_CPU_SECONDS]
        if missing := {RESIDENT_BYTES, CPU_SECONDS, OUTPUT_TOKENS} - figures.keys():
            raise KeyError(*missing)
        return Taken(figures[RESIDENT_BYTES], cpu_s, figures[OUTPUT_TOKENS])
    except (httpx.HTTPError, ValueError, KeyError) as error:
        raise CanaryError(
            "memory and CPU time of a server cannot be read",
            values=f"{metrics_url}: {error!r}",
            limit=f"{RESIDENT_BYTES}, {CPU_SECONDS} and {OUTPUT_TOKENS}",
            remedy="check the metrics port of the server, which must have this version",
        ) from None
