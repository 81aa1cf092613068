"""Collect the conditions of a measurement, which are stored with every result."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pipelines.version import Sources, version_of

_BUSY_SHARE = 0.1
_IDLE = (3, 4)  # places of idle and iowait among the times of a core, proc_stat(5)
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
        Role -> fingerprint and keys that determine speed; an empty entry for a directory that is not on this
        machine.
    """
    keys = (
        *("quantization", "num_parameters", "weight_bytes_per_step"),
        *("kv_cache_dtype", "attention", "linear", "num_threads"),
    )
    found: dict[str, Any] = {}
    for role, directory in engine_dirs.items():
        document = _json(directory / "engine.json")
        embedded = {"fingerprint": directory.name, **{key: document.get(key) for key in keys}}
        found[role] = embedded if document else _tensorrt_llm_conditions(directory)
    return found


def _tensorrt_llm_conditions(directory: Path) -> dict[str, Any]:
    """Read the same from the ``config.json`` of ``trtllm-build``."""
    document = _json(directory / "config.json")
    network = document.get("pretrained_config", {})
    if not network:
        return {}
    quantization = network.get("quantization", {})
    return {
        "fingerprint": directory.name,
        "tensorrt_llm": document.get("version"),
        "quantization": quantization.get("quant_algo"),
        "kv_cache_dtype": quantization.get("kv_cache_quant_algo"),
        "tp_size": network.get("mapping", {}).get("tp_size"),
    }


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


class OtherPrograms:
    """Measures, as a context manager, how much of the cores others used meanwhile.

    Others are all but this process and its descendants; what a hypervisor gave to other machines counts, too.

    Args:
        proc: Where the kernel shows processes.

    Attributes:
        share: Of the time of the cores that this process may use, 0 to 1; 0 if the kernel does not say.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self.share = 0.0

    @property
    def were_busy(self) -> bool:
        """Whether they used so much that times are longer."""
        return self.share > _BUSY_SHARE

    def __enter__(self) -> OtherPrograms:
        self._began_s, self._before = time.monotonic(), self._ticks()
        return self

    def __exit__(self, *_: object) -> None:
        spent_s = (self._ticks() - self._before) / os.sysconf("SC_CLK_TCK")
        cores_s = (time.monotonic() - self._began_s) * len(os.sched_getaffinity(0))
        self.share = min(max(spent_s / cores_s, 0.0), 1.0)

    def _ticks(self) -> int:
        """Return the time that others have used these cores, clock ticks."""
        try:
            lines = (self._proc / "stat").read_text(encoding="ascii").splitlines()
        except OSError:
            return 0
        of_core = {words[0]: words[1:] for line in lines if (words := line.split())}
        cores = [of_core.get(f"cpu{core}", []) for core in os.sched_getaffinity(0)]
        busy = sum(int(ticks) for core in cores for place, ticks in enumerate(core[:8]) if place not in _IDLE)
        parents, used = {}, {}
        for stat in self._proc.glob("[0-9]*/stat"):
            with suppress(OSError):  # it has ended
                fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
                pid = int(stat.parent.name)
                parents[pid], used[pid] = int(fields[1]), int(fields[11]) + int(fields[12])
        own = [os.getpid()]
        for pid in own:  # grows while it is walked through
            own += [child for child, parent in parents.items() if parent == pid]
        return busy - sum(used.get(pid, 0) for pid in own)
