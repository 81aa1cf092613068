"""Finds what a server may use of this machine, or of its container: memory, cores and instructions."""

from __future__ import annotations

import os
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_PROCESSORS = Path("/sys/devices/system/cpu")
_CGROUP = Path("/sys/fs/cgroup")
_CPUINFO = Path("/proc/cpuinfo")


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


def available_cores(processors: Path = _PROCESSORS, cgroup: Path = _CGROUP) -> int:
    """Count the cores that this process may use; at least 1.

    The hardware threads of a core count once, because steps wait for its memory and vector units.

    Args:
        processors: What the kernel says of processors (``Documentation/admin-guide/cputopology.rst``).
        cgroup: A cgroup of version 2, whose quota may be less than the machine has.
    """
    cores = len({_siblings(processors, number) for number in os.sched_getaffinity(0)})
    try:
        quota_us, period_us = (cgroup / "cpu.max").read_text(encoding="ascii").split()
        return max(1, min(cores, int(quota_us) // int(period_us)))  # "max" is not a number
    except (OSError, ValueError):
        return cores


def processor_flags(cpuinfo: Path = _CPUINFO) -> frozenset[str]:
    """Return the kernel's names of what the processor can do, such as ``avx2`` (``man 5 proc``)."""
    lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    return frozenset(next((line.partition(":")[2] for line in lines if line.startswith("flags")), "").split())


def has_avx2_alone() -> bool:
    """Return whether the processor has AVX2, but no extension for which OpenVINO has more kernels."""
    flags = processor_flags()
    return "avx2" in flags and not {"avx512f", "avx_vnni"} & flags


def _siblings(processors: Path, number: int) -> str:
    """Return the hardware threads of a processor's core; a processor of unknown topology is a core."""
    try:
        return (processors / f"cpu{number}/topology/thread_siblings_list").read_text(encoding="ascii")
    except OSError:
        return str(number)
