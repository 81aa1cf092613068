"""Describes how to start the server of a run directory: its ``launch.json``, which ``build`` writes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, get_args

from pydantic import NonNegativeInt

from pipelines import configuration
from pipelines.atomic_file import write_whole
from pipelines.errors import ServerStartError

Runtime = Literal["embedded", "tensorrt_llm"]
RUNTIMES = get_args(Runtime)
FORMAT = 8
"""Version of the rendered repository's format."""

_REMEDY = "run 'draftproof repository'"


@dataclass(frozen=True)
class PackageOrigin:
    """The package that a repository was rendered from.

    Attributes:
        directory: Absolute path of the package, whose engines the server loads.
        sha256: Digest of its list, ``SHA256SUMS``.
    """

    directory: str
    sha256: str


@configuration.strict
@dataclass(frozen=True)
class Launch:
    """Settings for starting a recipe's server.

    Attributes:
        runtime: ``embedded`` or ``tensorrt_llm``.
        container: Image with NVIDIA's Triton in which it runs; "" on the embedded runtime.
        gpu_device_ids: GPUs that the engines run on, ascending; () on the embedded runtime.
        package: The package that holds the engines; None if they are the checkout's.
        default_sampling: Who chose sampling parameters of requests that send none, ``serve`` (an option)
            before ``recipe`` -> their values by name.
    """

    runtime: Runtime = "embedded"
    container: str = ""
    gpu_device_ids: tuple[NonNegativeInt, ...] = ()
    package: PackageOrigin | None = None
    default_sampling: dict[str, dict[str, int | float]] = field(default_factory=dict)

    @classmethod
    def read(cls, directory: Path) -> Launch:
        """Read ``<directory>/launch.json``.

        A repository without the file was not rendered by ``draftproof repository``. It is served by the
        embedded runtime's Triton, which has only the Python backend.

        Raises:
            ServerStartError: The file is invalid.
        """
        path = directory / "launch.json"
        if not path.exists():
            return cls()
        return configuration.read_json(cls, path, FORMAT, ServerStartError, _REMEDY)

    def write(self, directory: Path) -> None:
        """Write ``<directory>/launch.json``."""
        document = {"format": FORMAT, **asdict(self)}
        write_whole(directory / "launch.json", json.dumps(document, indent=2) + "\n")

    @property
    def ready_timeout_s(self) -> float:
        """Return how long to wait for all models to load, seconds.

        The embedded demo is ready in less than 10 s. Engines of gigabytes are not, disks may be slow, and 120
        seconds were too short for a target of 1.7 billion parameters on a busy machine. Engines of
        TensorRT-LLM have up to hundreds of gigabytes.
        """
        return 600.0 if self.runtime == "embedded" else 1800.0
