"""What a pair takes of the machine's memory when it is loaded, and what is left of it.

On the embedded runtime the need is estimated from each ``engine.json``: the cache of keys and values, which a
process allocates whole, twice the weights (OpenVINO lays out INT8 weights anew, and holds both while it does)
and the process itself. Against it stands what the kernel says is available. On TensorRT-LLM both figures are
those of ``build/memory_plan.py``, whose workspace is an estimate too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.canary.candidate import Pair
from pipelines.errors import CanaryError

# Python, OpenVINO, its kernels, activations. A loop with tiny engines took 166 MiB in all; the demo pair's
# took 1086 MiB after loading, 1087 by this account.
PROCESS_BYTES = 250 << 20
_KV_BYTES = {"float32": 4, "float16": 2}
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Memory:
    """Bytes on one device.

    Attributes:
        device: ``host``, or the number of a GPU.
        needed: By the models that would be loaded.
        available: Before they are.
    """

    device: str
    needed: int
    available: int


def memory_of(candidate: Pair, loaded: Sequence[Pair]) -> tuple[Memory, ...]:
    """What loading a pair takes and finds.

    Args:
        candidate: To be loaded.
        loaded: Those that are.

    Raises:
        CanaryError: An engine does not say what it takes.
    """
    if candidate.loads_at_start:  # so it is loaded
        return ()
    if candidate.runtime == "embedded":
        return (Memory("host", _embedded_bytes(candidate), available_bytes()),)
    usable = min(pair.gpu_usable_bytes for pair in (candidate, *loaded))
    return tuple(
        Memory(device, needed, usable - sum(pair.gpu_bytes.get(device, 0) for pair in loaded))
        for device, needed in candidate.gpu_bytes.items()
    )


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


def _embedded_bytes(pair: Pair) -> int:
    engines = {"draft": Path(pair.draft_engine_dir), "target": Path(pair.target_engine_dir)}
    taken = {role: _engine_bytes(path, pair.num_kv_blocks[role]) for role, path in engines.items()}
    # The loop holds both engines; a target alone is loaded a second time.
    num_others = len(pair.models) - 1
    return taken["draft"] + (1 + num_others) * taken["target"] + len(pair.models) * PROCESS_BYTES


def _engine_bytes(directory: Path, num_kv_blocks: int) -> int:
    path = directory / "engine.json"
    try:
        engine = json.loads(path.read_text(encoding="utf-8"))
        per_token = 2 * engine["num_layers"] * engine["num_kv_heads"] * engine["head_size"]
        cache = num_kv_blocks * engine["kv_block_size"] * per_token * _KV_BYTES[engine["kv_cache_dtype"]]
        return int(cache + 2 * engine["weight_bytes_per_step"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CanaryError(
            "an engine does not say how much memory it takes",
            values=f"{path}: {error!r}",
            limit="engine.json as 'make engines' writes it",
            remedy="run 'make engines' for the recipe",
        ) from None
