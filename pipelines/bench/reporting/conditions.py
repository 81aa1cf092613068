"""Collect the conditions of a measurement, which are stored with every result."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines.version import Sources, version_of

_PACKAGES = ("draftproof", "openvino", "numpy", "nvidia-pytriton", "tritonclient", "httpx", "tokenizers")
_FLAGS = re.compile(r"^(avx|amx|fma$|f16c$)")  # flags that determine kernels


def conditions(program: str, arguments: Sequence[str], **more: Any) -> dict[str, Any]:
    """Collect machine, versions, commit and load, ready for JSON; host name and paths are not included.

    Args:
        program: Module that runs, such as ``pipelines.bench``.
        arguments: Its command line, which may contain paths.
        more: Conditions that only the caller knows, such as ``recipe`` or ``triton_version``.
    """
    sources = Sources.find()
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": shlex.join(["python", "-m", program, *arguments]),
        "git_sha": sources.commit,
        "git_dirty": sources.is_changed,
        "cpu": _cpu_info("model name"),
        "cpu_flags": sorted(flag for flag in _cpu_info("flags").split() if _FLAGS.match(flag)),
        "num_cores": len(os.sched_getaffinity(0)),  # cores that this process may use
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "load_average_1min": round(os.getloadavg()[0], 2),
        "os": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: version_of(name) for name in _PACKAGES},
        **more,
    }


def engine_conditions(engine_dirs: Mapping[str, Path]) -> dict[str, Any]:
    """Read the description of each engine that a server on this machine has loaded.

    Args:
        engine_dirs: Role -> engine directory.

    Returns:
        Role -> fingerprint, and keys that determine speed where an engine of ours tells them; an empty entry
        for a directory that is not on this machine.
    """
    keys = (
        *("quantization", "num_parameters", "weight_bytes_per_step"),
        *("kv_cache_dtype", "attention", "linear", "num_threads"),
    )
    found: dict[str, Any] = {}
    for role, directory in engine_dirs.items():
        document = _json(directory / "engine.json")
        told = {key: document[key] for key in keys if key in document}
        found[role] = {"fingerprint": directory.name, **told} if directory.is_dir() else {}
    return found


def _json(path: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document


def _cpu_info(key: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(key)), "")
