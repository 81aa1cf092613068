"""Check this machine, and report which commands work on it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from pipelines.available_resources import available_bytes, processor_flags
from pipelines.deploy.check import Check
from pipelines.deploy.gpu_doctor import gpu_checks
from pipelines.deploy.ports import Ports
from pipelines.deploy.triton.install import TritonInstall, shared_python
from pipelines.errors import DraftproofError
from pipelines.places import DATA

MIN_MEMORY_BYTES = 4 * 2**30  # `demo` with three engines; demo-large needs about three times as much
MIN_DISK_BYTES = 2 * 2**30  # engines of `demo` and the virtual environment
MIN_SHARED_MEMORY_BYTES = 64 * 2**20  # ten models of 1 MB, growing with their tensors; Docker's default
MIN_GLIBC = (2, 35)

NEEDS_SERVER = ("demo", "try", "serve", "verify", "bench")
NEEDS_ENGINES = ("engines", "repository", *NEEDS_SERVER)


def examine(ports: Ports) -> list[Check]:
    """Check the machine without changing anything or raising."""
    return [
        _python(),
        _glibc(),
        _processor(),
        _memory(),
        _shared_memory(),
        _disk(),
        *map(_package, ("numpy", "openvino", "tokenizers", "tritonclient")),
        _compiler(),
        _triton(),
        _shared_python(),
        _free_ports(ports),
        *gpu_checks(),
    ]


def print_checks(checks: Sequence[Check]) -> int:
    """Print a table and a summary; return 0 if ``draftproof demo`` works, otherwise 1."""
    width = max(len(check.name) for check in checks)
    for check in checks:
        found = "-      " if check.is_absent else "ok     "
        mark = "MISSING" if check.stops else "note   " if check.remedy else found
        print(f"{mark} {check.name:<{width}}  {check.value}")
        if check.remedy:
            print(f"        {'':<{width}}  -> {check.remedy}")
    stopped = sorted({command for check in checks for command in check.stops})
    if stopped:
        print(f"\nThese commands do not work on this machine: {', '.join(stopped)}. All others do.")
    else:
        print("\nAll commands work on this machine.")
    return int("demo" in stopped)


def _python() -> Check:
    version = platform.python_version()
    if (3, 10) <= sys.version_info[:2] <= (3, 12) and sys.maxsize > 2**32:
        return Check("Python", f"{version}, {sys.executable}")
    return Check("Python", version, "create the virtual environment with Python 3.10 to 3.12", NEEDS_ENGINES)


def _glibc() -> Check:
    name, version = platform.libc_ver()
    parts = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if name == "glibc" and parts >= MIN_GLIBC:
        return Check("C library", f"glibc {version}")
    remedy = "Triton needs glibc 2.35 (Debian 12, Ubuntu 22.04 or newer); use one of these, or a container"
    return Check("C library", f"{name or 'unknown'} {version}", remedy, NEEDS_SERVER)


def _processor() -> Check:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    flags = processor_flags()
    known = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8")
    present = [flag for flag in known if flag in flags]
    cores = len(os.sched_getaffinity(0))
    value = f"{platform.machine()}, {cores} cores, {' '.join(present) or 'no AVX2'}, {model}"
    if platform.machine() != "x86_64" or "avx2" not in flags:
        return Check("Processor", value, "the embedded engines need x86-64 with AVX2", NEEDS_ENGINES)
    return Check("Processor", value)


def _memory() -> Check:
    available = available_bytes()
    value = f"{available / 2**30:.1f} GiB available"
    if available >= MIN_MEMORY_BYTES:
        return Check("Memory", value)
    return Check("Memory", value, f"'demo' needs {MIN_MEMORY_BYTES / 2**30:.0f} GiB; close other programs")


def _shared_memory() -> Check:
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError:
        return Check("/dev/shm", "absent", "Triton's Python models communicate through it", NEEDS_SERVER)
    value = f"{free / 2**20:.0f} MiB free"
    if free >= MIN_SHARED_MEMORY_BYTES:
        return Check("/dev/shm", value)
    return Check(
        "/dev/shm", value, "free up 64 MiB, or start the container with a larger --shm-size", NEEDS_SERVER
    )


def _disk() -> Check:
    folder = next(folder for folder in (DATA, *DATA.parents) if folder.exists())
    free = shutil.disk_usage(folder).free
    value = f"{free / 2**30:.1f} GiB free"
    if free >= MIN_DISK_BYTES:
        return Check("Disk", value)
    return Check("Disk", value, f"engines need {MIN_DISK_BYTES / 2**30:.0f} GiB", ("engines",))


def _package(name: str) -> Check:
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        version = "not installed"
    # Tensors arrive empty in Triton with numpy 2.
    if version == "not installed" or (name == "numpy" and not version.startswith("1.")):
        remedy = "remove .venv and run 'make doctor', which installs the locked packages"
        return Check(name, version, remedy, NEEDS_ENGINES)
    return Check(name, version)


def _compiler() -> Check:
    path = shutil.which("g++")
    if path is not None:
        return Check("g++", f"{path}, for engines with attention or products of our own")
    return Check(
        "g++", "absent", "for attention of our own, and faster engines with AVX2 alone: apt install g++"
    )


def _triton() -> Check:
    try:
        TritonInstall.find()
    except DraftproofError as error:
        return Check("Triton", error.message, error.remedy, NEEDS_SERVER)
    return Check("Triton", f"2.51.0 in nvidia-pytriton {importlib.metadata.version('nvidia-pytriton')}")


def _shared_python() -> Check:
    library = shared_python()
    if library is not None:
        return Check("libpython", str(library))
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    remedy = f"apt install libpython{version}, or use a Python built with --enable-shared"
    return Check("libpython", f"no libpython{version}.so.1.0", remedy, NEEDS_SERVER)


def _free_ports(ports: Ports) -> Check:
    value = f"OpenAI {ports.openai}, HTTP {ports.http}, gRPC {ports.grpc}, metrics {ports.metrics}"
    try:
        ports.check_free()
    except DraftproofError as error:
        return Check("Ports", error.message, error.remedy, ("serve",))
    return Check("Ports", f"{value} are free")
