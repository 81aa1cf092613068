"""Memory that this server may still have, which decides whether another pair has room beside those it has."""

from __future__ import annotations

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_STEP_BYTES = 1 << 26  # of the published figure: smaller changes are not worth a round trip to Triton


def available_bytes(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int:
    """Memory that a new process may have: of the machine, and of the container if it has less.

    A container's own cache of files can be given up, as ``MemAvailable`` counts it for the machine.

    Args:
        meminfo: The kernel's account, ``man 5 proc``.
        cgroup: Of version 2, ``Documentation/admin-guide/cgroup-v2.rst``; without one the machine's counts.
    """
    fields = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines())
    machine = int(fields["MemAvailable"].split()[0]) * 1024
    try:
        limit = int((cgroup / "memory.max").read_text(encoding="ascii"))  # "max" is no number
        used = int((cgroup / "memory.current").read_text(encoding="ascii"))
        lines = (cgroup / "memory.stat").read_text(encoding="ascii").splitlines()
        cache = int(dict(line.split(" ", 1) for line in lines)["inactive_file"])
    except (OSError, ValueError, KeyError):
        return machine
    return min(machine, limit - used + cache)


def published_bytes() -> float:
    """The same, rounded down to 64 MiB."""
    return float(available_bytes() // _STEP_BYTES * _STEP_BYTES)
