"""Files and directories that are there as a whole or not at all."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def scratch_beside(destination: Path) -> Iterator[Path]:
    """A hidden folder on the file system of what is being made; gone afterwards, whatever happened.

    ``build/exclusive.py`` removes those that a killed builder left.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{destination.name}-", dir=destination.parent))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def whole_directory(destination: Path) -> Iterator[Path]:
    """An empty folder to fill, in place of ``destination`` when the block has ended without an error."""
    with scratch_beside(destination) as scratch:
        made = scratch / "made"
        made.mkdir()
        yield made
        put_in_place(made, destination)


def put_in_place(made: Path, destination: Path) -> None:
    """Move a finished directory to where others look for it.

    Two renames: for a moment there is none, but never half of one.

    Args:
        made: In a folder of ``scratch_beside(destination)``, which takes away what is replaced.
        destination: Replaced if it is there.
    """
    if destination.exists():
        destination.rename(made.with_name(f"{made.name}-replaced"))
    made.rename(destination)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A name to write under, that of ``path`` when the block has ended without an error."""
    with scratch_beside(path) as scratch:
        made = scratch / path.name
        yield made
        made.replace(path)


def write_whole(path: Path, text: str) -> None:
    """Write a text file."""
    with whole_file(path) as made:
        made.write_text(text, encoding="utf-8")
