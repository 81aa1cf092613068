"""Allow one build at a time in a folder."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from pipelines.atomic_file import remove_directory
from pipelines.errors import EngineBuildError


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
            f"{directory} is not writable",
            values=str(error),
            limit="engines are written to this folder",
            remedy="grant this user write access, or use another checkout",
        ) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for leftover in directory.glob(".*-*"):
            if leftover.is_dir():
                remove_directory(leftover)
        yield lock
