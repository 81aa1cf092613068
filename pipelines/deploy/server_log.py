"""Extract the lines of a server log that explain a failure."""

from __future__ import annotations

import re
from pathlib import Path

MAX_LINES = 12
MAX_LINE_LENGTH = 600

# Logged on every machine without a GPU; unrelated to a failure.
_HARMLESS = re.compile(r"CUDA|Cuda|NVML|DCGM|in-flight|unloading|successfully unloaded|live models")
_ERROR = re.compile(r"^E\d{4} |^error: |Error|Exception|Signal \(")
_TABLE = re.compile(r"^[+|]")


def error_lines(log: Path) -> str:
    """Return the lines of a Triton log that explain why it ended: errors, else the last lines.

    The cause is not at the end, because Triton prints a hundred lines of tables after a model failed to load.
    """
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    lines = [line.rstrip()[:MAX_LINE_LENGTH] for line in text.splitlines() if line.strip()]
    relevant = [line for line in lines if not _HARMLESS.search(line) and not _TABLE.match(line)]
    errors = [line for line in relevant if _ERROR.search(line)]
    chosen = errors or relevant[-MAX_LINES:]
    if len(chosen) > MAX_LINES:  # the first errors show the cause, the last ones how it ended
        chosen = chosen[: MAX_LINES // 2] + chosen[-MAX_LINES // 2 :]
    last = lines[-1:]
    return "\n".join([*chosen, *(line for line in last if line not in chosen)])
