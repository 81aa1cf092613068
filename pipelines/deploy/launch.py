"""How the server of a rendered repository is started: what ``launch.json`` says (``build/launch.py``)."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from pipelines.errors import ServerStartError

RUNTIMES = ("embedded", "tensorrt_llm")
MODES = ("orchestrator", "leader")


@dataclass(frozen=True)
class Launch:
    """What a recipe decides about starting its server.

    Attributes:
        runtime: ``embedded`` or ``tensorrt_llm``.
        container: Image that ``image`` is built on.
        image: Image that holds Triton and what its Python models need.
        image_target: Stage of ``pipelines/deploy/Dockerfile``.
        mode: ``orchestrator`` or ``leader``; None on the embedded runtime.
        spawns_workers: Whether the server starts the ranks of its engines itself.
        world_size: Ranks that MPI starts.
        num_nodes: Machines that the ranks are spread over.
        ranks_per_node: Ranks on each machine but the first, which has the rest.
        gpu_device_ids: GPUs of one machine, ascending.
    """

    runtime: str = "embedded"
    container: str = ""
    image: str = ""
    image_target: str = "server"
    mode: str | None = None
    spawns_workers: bool = False
    world_size: int = 1
    num_nodes: int = 1
    ranks_per_node: int = 1
    gpu_device_ids: tuple[int, ...] = ()

    @classmethod
    def read(cls, directory: Path) -> Launch:
        """What ``<directory>/launch.json`` says.

        A repository without the file was not rendered by ``make repository``; it is served by the
        embedded runtime's Triton, whose only backend is Python's.

        Raises:
            ServerStartError: The file cannot be used.
        """
        path = directory / "launch.json"
        if not path.exists():
            return cls()
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
            raw["gpu_device_ids"] = tuple(raw.get("gpu_device_ids", ()))
            launch = cls(**raw)
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise _unusable(path, " ".join(str(error).split())) from None
        wrong = [
            f"{field.name}={getattr(launch, field.name)!r}"
            for field in dataclasses.fields(cls)
            if not _is_sound(field.name, getattr(launch, field.name), launch.runtime)
        ]
        if wrong:
            raise _unusable(path, ", ".join(wrong))
        return launch

    @property
    def ready_timeout_s(self) -> float:
        """Seconds until all models can be expected to be loaded.

        The embedded demo is ready in under 10 s; the rest is for slow disks and busy machines. Engines
        of TensorRT-LLM are up to hundreds of gigabytes, read once.
        """
        return 120.0 if self.runtime == "embedded" else 1800.0


def _is_sound(name: str, value: object, runtime: str) -> bool:
    if name == "runtime":
        return value in RUNTIMES
    if name == "mode":
        return value is None if runtime == "embedded" else value in MODES
    if name == "spawns_workers":
        return type(value) is bool
    if name in ("world_size", "num_nodes", "ranks_per_node"):
        return type(value) is int and value >= 1
    if name == "gpu_device_ids":
        assert isinstance(value, tuple)
        whole = all(type(item) is int and item >= 0 for item in value)
        return whole and bool(value) == (runtime != "embedded") and list(value) == sorted(set(value))
    return isinstance(value, str)


def _unusable(path: Path, values: str) -> ServerStartError:
    return ServerStartError(
        f"{path} cannot be used",
        values=values,
        limit="as 'make repository' of this version writes it",
        remedy="run 'make repository'",
    )
