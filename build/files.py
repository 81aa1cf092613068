"""Write what a build makes: directories of engines and their manifests, locked and with enough space.

The directory of an engine is named by a hash of everything that decides its content, so an existing engine is
not built again. A complete directory is renamed to its final name, is read-only from then on, and is never
modified.
"""

from __future__ import annotations

import fcntl
import json
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from pipelines.atomic_file import put_in_place, remove_directory, scratch_beside
from pipelines.errors import EngineBuildError, RecipeError
from pipelines.manifest import MANIFEST_NAME, read_manifest, sha256_file, sha256_json

_GB = 1e9


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


def write_manifest(directory: Path, content: Mapping[str, Any]) -> None:
    """Write the manifest of a directory, after all other files.

    Args:
        directory: Engine directory with all its other files.
        content: Further entries on the origin: fingerprint, recipe hash, versions.
    """
    files = sorted(path for path in directory.iterdir() if path.name != MANIFEST_NAME)
    manifest = {
        **content,
        "created_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "files": {path.name: {"sha256": sha256_file(path), "bytes": path.stat().st_size} for path in files},
    }
    (directory / MANIFEST_NAME).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def is_complete(directory: Path, fingerprint: str) -> bool:
    """Return whether a directory has this fingerprint and all its files, judged by names and sizes alone."""
    manifest = read_manifest(directory)
    if manifest is None or manifest.get("fingerprint") != fingerprint:
        return False
    return all(
        (directory / name).is_file() and (directory / name).stat().st_size == entry.get("bytes")
        for name, entry in manifest["files"].items()
    )


@contextmanager
def exclusive(directory: Path) -> Iterator[TextIO]:
    """Lock a folder for a build, and remove temporary directories (``.*-*``) that a killed build left.

    Args:
        directory: Created if needed.

    Yields:
        The open lock file; a child process that inherits it keeps the folder locked until it ends.

    Raises:
        EngineBuildError: The folder is not writable.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / ".lock").open("w")
    except OSError as error:
        raise EngineBuildError(
            f"engines cannot be written to {directory}: {error}",
            "grant this user write access, or use another checkout",
        ) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for leftover in directory.glob(".*-*"):
            if leftover.is_dir():
                remove_directory(leftover)
        yield lock


class Need(NamedTuple):
    """Files that are going to be written; an environment variable may name another folder for them."""

    what: str
    folder: Path  # need not exist
    size: float  # bytes
    variable: str = ""


def check_space(needs: Iterable[Need]) -> None:
    """Check that every disk holds what is going to be written to it.

    Raises:
        RecipeError: A disk does not.
    """
    by_disk: defaultdict[int, list[Need]] = defaultdict(list)
    for need in needs:
        folder = _existing(need.folder)
        by_disk[folder.stat().st_dev].append(need._replace(folder=folder))
    for together in by_disk.values():
        free = shutil.disk_usage(together[0].folder).free
        wanted = sum(need.size for need in together)
        if wanted > free:
            parts = ", ".join(f"{need.size / _GB:.1f} GB for {need.what}" for need in together if need.size)
            variables = " and ".join(
                sorted({need.variable for need in together if need.size and need.variable})
            )
            raise RecipeError(
                f"the disk does not hold this pair: {free / _GB:.1f} GB free on the disk of "
                f"{together[0].folder}, and {wanted / _GB:.1f} GB needed, {parts}",
                "free some space"
                + (f", or point {variables} to a folder on another disk" if variables else ""),
            )


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())
