"""What a server's log says about its death."""

from __future__ import annotations

import re
from pathlib import Path

MAX_LINES = 12
MAX_LINE_LENGTH = 600

# Seen on every machine without a GPU; they say nothing about a failure.
_HARMLESS = re.compile(r"CUDA|Cuda|NVML|DCGM|in-flight|unloading|successfully unloaded|live models")
_SPEAKING = re.compile(r"^E\d{4} |^error: |Error|Exception|Signal \(")
_TABLE = re.compile(r"^[+|]")


def last_words(log: Path) -> str:
    """The lines of a Triton log that explain why it ended, errors first, then the very last ones.

    Triton buries the cause: after a model failed to load it goes on for a hundred lines of tables.
    """
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    lines = [line.rstrip()[:MAX_LINE_LENGTH] for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if not _HARMLESS.search(line) and not _TABLE.match(line)]
    speaking = [line for line in telling if _SPEAKING.search(line)]
    chosen = speaking or telling[-MAX_LINES:]
    if len(chosen) > MAX_LINES:  # what failed first is the cause, what failed last the way it ended
        chosen = chosen[: MAX_LINES // 2] + chosen[-MAX_LINES // 2 :]
    last = lines[-1:]
    return "\n".join([*chosen, *(line for line in last if line not in chosen)])
