"""Describes the model that a server serves, with all that a front door must know of it.

The front door of one server reads it from the run directory. One that has no server of its own asks a server
of its fleet, whose gateway answers ``METHOD``; so it needs neither engines nor a repository.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipelines import configuration
from pipelines.deploy.triton.launch import Launch
from pipelines.deploy.triton.models import ROUTER, rendered_parameters
from pipelines.deploy.triton.pair_record import LOOP, PairRecord
from pipelines.errors import ServerStartError
from pipelines.manifest import read_checked

METHOD = "/draftproof.FrontDoor/Describe"
"""gRPC method without arguments, which returns ``ServedFiles.to_wire``."""

_FORMAT = 3
_BUILT_IN = {  # OpenAI's defaults
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
_CHAT = "chat.json"  # written by build/checkpoints/engine_texts.py
_SAMPLING = "sampling.json"  # written by build/checkpoints/engine_texts.py


@configuration.strict
@dataclass(frozen=True)
class ServedFiles:
    """The description of a model, with the content of the files that a front door reads.

    Attributes:
        name: Name of the recipe, which clients send as ``model``.
        target_digest: Digest of the target's engine.
        max_seq_len: Most tokens of prompt and answer together.
        max_requests: Most requests that the server answers or keeps waiting at a time.
        created_s: Unix time at which the repository was rendered.
        tokenizer: ``tokenizer.json`` of the target.
        chat: Its chat template; None if it has none.
        sampling: Who chose sampling parameters of requests that send none, the one that counts first:
            ``serve``, ``recipe`` and ``checkpoint`` -> their values by name.
    """

    name: str
    target_digest: str
    max_seq_len: int
    max_requests: int
    created_s: int
    tokenizer: str
    chat: str | None
    sampling: dict[str, dict[str, int | float]]

    @classmethod
    def read(cls, directory: Path) -> ServedFiles:
        """Read the rendered repository of a run directory.

        Args:
            directory: ``.run/<recipe>``.

        Raises:
            RepositoryError: There is no repository.
            ServerStartError: It was not rendered by this version.
            EngineLoadError: The tokenizer has changed since.
        """
        repository = directory / "model_repository"
        parameters = rendered_parameters(directory, ROUTER)
        pair = PairRecord.read(repository / LOOP, ServerStartError)
        try:
            engine = Path(pair.target_engine_dir)
            recommended = json.loads(_text(engine / _SAMPLING) or "{}")
            launch = Launch.read(directory)
            tokenizer = read_checked(Path(parameters["tokenizer_file"]), parameters["tokenizer_sha256"])
            return cls(
                name=rendered_parameters(directory, LOOP)["served_model_name"],
                target_digest=pair.target_digest,
                max_seq_len=int(parameters["max_seq_len"]),
                max_requests=int(parameters["max_batch_size"]) + int(parameters["max_queue_size"]),
                created_s=int((repository / ROUTER / "config.pbtxt").stat().st_mtime),
                tokenizer=tokenizer.decode(),
                chat=_text(engine / _CHAT),
                sampling=launch.default_sampling | ({"checkpoint": recommended} if recommended else {}),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ServerStartError(
                f"{repository} was not rendered by this version: {error!r}", "run 'draftproof repository'"
            ) from None

    @property
    def default_sampling(self) -> dict[str, tuple[Any, str]]:
        """The sampling parameters of requests that send none, and who chose each: name -> value, source."""
        chosen = {name: (value, "built-in") for name, value in _BUILT_IN.items()}
        for source, values in reversed(self.sampling.items()):
            chosen |= {name: (value, source) for name, value in values.items()}
        return chosen

    def sampling_line(self) -> str:
        """Say how requests are sampled that send no temperature."""
        by_source: dict[str, list[str]] = {}
        for name, (value, source) in self.default_sampling.items():
            by_source.setdefault(source, []).append(f"{name} {value:g}")
        by_source.pop("built-in", None)
        temperature, source = self.default_sampling["temperature"]
        if source == "built-in":
            by_source = {
                "neither the recipe nor the checkpoint sets one": [f"temperature {temperature:g}"],
                **by_source,
            }
        said = (f"{', '.join(values)} ({source})" for source, values in by_source.items())
        return f"requests that send no temperature are sampled at {', '.join(said)}"

    def to_wire(self) -> bytes:
        """Return it for ``of_wire``."""
        return json.dumps({"format": _FORMAT, **asdict(self)}).encode()

    @classmethod
    def of_wire(cls, content: bytes, address: str) -> ServedFiles:
        """Return what a server sent.

        Args:
            content: The answer of ``METHOD``.
            address: The server, for errors.

        Raises:
            ServerStartError: It cannot be read.
        """
        remedy = "run the same version of Draftproof on servers and front doors"
        return configuration.parse_versioned(cls, content, address, _FORMAT, ServerStartError, remedy)


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None
