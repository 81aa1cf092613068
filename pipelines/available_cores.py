"""Counts the processor cores on which the engines of a pair can compute."""

from __future__ import annotations

import os
from pathlib import Path

_PROCESSORS = Path("/sys/devices/system/cpu")
_CGROUP = Path("/sys/fs/cgroup")


def available_cores(processors: Path = _PROCESSORS, cgroup: Path = _CGROUP) -> int:
    """Count the cores that this process may use; at least 1.

    The hardware threads of a core count once, because steps wait for its memory and vector units.

    Args:
        processors: What the kernel says of processors (``Documentation/admin-guide/cputopology.rst``).
        cgroup: A cgroup of version 2, whose quota may be less than the machine has.
    """
    siblings = {_siblings(processors, number) for number in os.sched_getaffinity(0)}
    return max(1, min(len(siblings), _quota(cgroup)))


def _siblings(processors: Path, number: int) -> str:
    """Return the hardware threads of a processor's core; a processor of unknown topology is a core."""
    try:
        return (processors / f"cpu{number}/topology/thread_siblings_list").read_text(encoding="ascii")
    except OSError:
        return str(number)


def _quota(cgroup: Path) -> int:
    try:
        quota_us, period_us = (cgroup / "cpu.max").read_text(encoding="ascii").split()
        return int(quota_us) // int(period_us)  # "max" is not a number
    except (OSError, ValueError):
        return os.cpu_count() or 1
