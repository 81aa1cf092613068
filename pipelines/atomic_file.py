"""Write files and directories atomically: readers see the old content or the new, never a part of it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def scratch_beside(destination: Path) -> Iterator[Path]:
    """Make a hidden temporary folder next to ``destination``, and remove it when the block ends.

    It is on the same file system, so that its content can be moved into place by rename. A killed process
    leaves it behind; ``build/files.py`` removes such folders.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{destination.name}-", dir=destination.parent))
    try:
        yield scratch
    finally:
        remove_directory(scratch)


def remove_directory(directory: Path) -> None:
    """Delete a directory tree, read-only folders included, and ignore what cannot be deleted."""
    for folder, _, _ in os.walk(directory):  # top-down: a folder must be readable before it is walked
        with suppress(OSError):
            Path(folder).chmod(0o700)
    shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def whole_directory(destination: Path) -> Iterator[Path]:
    """Yield an empty folder that replaces ``destination`` when the block ends without an error."""
    with scratch_beside(destination) as scratch:
        made = scratch / "made"
        made.mkdir()
        yield made
        put_in_place(made, destination)


def put_in_place(made: Path, destination: Path) -> None:
    """Replace a directory by a finished one.

    This takes two renames: for a moment ``destination`` does not exist, but it is never incomplete.

    Args:
        made: The finished directory, in a folder of ``scratch_beside(destination)``; that folder also takes
            the old directory.
        destination: Need not exist.
    """
    if destination.exists():
        destination.chmod(0o755)  # a read-only folder cannot be moved into another one
        destination.rename(made.with_name(f"{made.name}-replaced"))
    made.rename(destination)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a path to write to; the file replaces ``path`` when the block ends without an error."""
    with scratch_beside(path) as scratch:
        made = scratch / path.name
        yield made
        made.replace(path)


def version_of(path: Path) -> tuple[int, ...] | None:
    """Identify what a file contains now, even if it is replaced twice within one tick of its clock.

    Returns:
        Equal numbers for the same content; None if there is no such file.
    """
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def write_whole(path: Path, text: str) -> None:
    """Write a text file that every user may read, and create its folder if needed."""
    with whole_file(path) as made:
        made.write_text(text, encoding="utf-8")
        made.chmod(0o644)
