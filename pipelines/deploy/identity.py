"""Says on what the bits of a server's answers depend, so that a fleet knows which servers answer alike.

The gateway publishes it among the extensions of KServe's server metadata.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pipelines import configuration
from pipelines.deploy.triton.models import rendered_parameters
from pipelines.deploy.triton.pair_record import LOOP, PairRecord
from pipelines.errors import RepositoryError

_PREFIX = "draftproof "
_CPU_INFO = Path("/proc/cpuinfo")
_CHOOSES_KERNELS = ("vendor_id", "cpu family", "model", "flags", "cache size")
_REMEDY = "render the repository again with 'draftproof repository'"


@configuration.strict
@dataclass(frozen=True)
class ServerIdentity:
    """Names everything that decides the answers of a server, for a given request and seed.

    Attributes:
        pair: Name that clients send as ``model``.
        target_digest: Digest of the target's engine. The draft changes no answer.
        runtime: ``embedded`` or ``tensorrt_llm``.
        processor: Type of the processor, with a digest of what a kernel is chosen by.
        num_threads: Threads of the target's engine: as many as it wants, at most as many as there are
            processors.
    """

    pair: str
    target_digest: str
    runtime: str
    processor: str
    num_threads: int

    def answers_as(self, other: ServerIdentity) -> bool:
        """Whether both servers give the same answer to the bit; no engine of TensorRT-LLM promises that."""
        return self == other and self.runtime == "embedded"

    @property
    def extension(self) -> str:
        """The server's extension, for ``of_extensions``."""
        return _PREFIX + json.dumps(dataclasses.asdict(self))

    @classmethod
    def of_extensions(cls, extensions: Iterable[str]) -> ServerIdentity | None:
        """Return what a server published; None if it published nothing.

        Raises:
            RepositoryError: It cannot be read.
        """
        found = next((each for each in extensions if each.startswith(_PREFIX)), None)
        if found is None:
            return None
        return configuration.parse_json(cls, found.removeprefix(_PREFIX), RepositoryError, _REMEDY)

    @classmethod
    def read(cls, directory: Path) -> ServerIdentity:
        """Read the identity of the server of a run directory.

        Args:
            directory: ``.run/<recipe>`` with the rendered repository.

        Raises:
            RepositoryError: The description of the pair cannot be read.
        """
        pair = PairRecord.read(directory / "model_repository" / LOOP)
        engine = Path(pair.target_engine_dir) / "engine.json"
        wanted = json.loads(engine.read_text(encoding="utf-8"))["num_threads"] if engine.is_file() else 0
        return cls(
            pair=rendered_parameters(directory, LOOP)["served_model_name"],
            target_digest=pair.target_digest,
            runtime=pair.runtime,
            processor=processor_type(),
            num_threads=min(wanted, len(os.sched_getaffinity(0))),
        )


def processor_type() -> str:
    """Return the type of the first processor: two of the same type may hide different instructions."""
    fields: dict[str, str] = {}
    for line in _CPU_INFO.read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    told = json.dumps([fields.get(name, "") for name in _CHOOSES_KERNELS])
    return f"{fields.get('model name', 'unknown')} {hashlib.sha256(told.encode()).hexdigest()[:12]}"
