"""Engine directories, named by a hash of everything that decides their content.

An existing engine is therefore not built again. A complete directory is renamed to its final name, is
read-only from then on, and is never modified.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build.files.manifest import is_complete
from pipelines.atomic_file import put_in_place, scratch_beside
from pipelines.manifest import sha256_json


@dataclass(frozen=True)
class EnginePlan:
    """A planned engine.

    Attributes:
        role: ``draft`` or ``target``.
        directory: Directory that it is written to.
        identity: Everything that decides its content.
        fingerprint: SHA-256 of the identity.
    """

    role: str
    directory: Path
    identity: dict[str, Any]
    fingerprint: str

    def is_built(self) -> bool:
        """Return whether this engine exists."""
        return is_complete(self.directory, self.fingerprint)


def plan_engine(recipe_folder: Path, role: str, identity: dict[str, Any]) -> EnginePlan:
    """Plan an engine and derive its directory from its identity.

    Args:
        recipe_folder: ``engines/<recipe>``.
        role: ``draft`` or ``target``.
        identity: Everything that decides the content of the engine, a JSON value.
    """
    fingerprint = sha256_json(identity)
    return EnginePlan(role, recipe_folder / f"{role}-{fingerprint[:16]}", identity, fingerprint)


@contextmanager
def new_engine(destination: Path) -> Iterator[tuple[Path, Path]]:
    """Create an engine directory atomically.

    Args:
        destination: Replaced if it exists.

    Yields:
        An empty folder for the files of the engine, and one for temporary files. When the block ends without
        an error, the former becomes ``destination``.
    """
    with scratch_beside(destination) as scratch:
        engine = scratch / "engine"
        engine.mkdir()
        yield engine, scratch
        for path in engine.iterdir():
            path.chmod(0o444)
        put_in_place(engine, destination)
        destination.chmod(0o555)  # not before: a read-only folder cannot be moved into another one
