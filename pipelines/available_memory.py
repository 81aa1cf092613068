"""Measures the memory that is still available to the server, for instance for a second pair."""

from __future__ import annotations

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_STEP_BYTES = 1 << 26  # smaller changes are not worth a round trip to Triton


def available_bytes(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int:
    """Return the memory available to a new process on this machine, or in this container if that is less.

    A container's file cache counts as available, as it does in ``MemAvailable`` for the machine.

    Args:
        meminfo: The kernel's memory statistics (``man 5 proc``).
        cgroup: A cgroup of version 2 (``Documentation/admin-guide/cgroup-v2.rst``); without one, the
            machine's memory counts.
    """
    fields = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines())
    machine = int(fields["MemAvailable"].split()[0]) * 1024
    try:
        limit = int((cgroup / "memory.max").read_text(encoding="ascii"))  # "max" is not a number
        used = int((cgroup / "memory.current").read_text(encoding="ascii"))
        lines = (cgroup / "memory.stat").read_text(encoding="ascii").splitlines()
        cache = int(dict(line.split(" ", 1) for line in lines)["inactive_file"])
    except (OSError, ValueError, KeyError):
        return machine
    return min(machine, limit - used + cache)


def published_bytes() -> float:
    """Return the available memory, rounded down to 64 MiB."""
    return float(available_bytes() // _STEP_BYTES * _STEP_BYTES)
