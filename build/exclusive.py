"""One builder at a time in a folder."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from pipelines.errors import EngineBuildError


@contextmanager
def exclusive(directory: Path) -> Iterator[TextIO]:
    """Hold a folder alone; half-made directories (``.*-*``) that a killed builder left are removed.

    Args:
        directory: Made if absent.

    Yields:
        The lock: a process that inherits it keeps the next builder out until it has ended.

    Raises:
        EngineBuildError: It cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / ".lock").open("w")
    except OSError as error:
        raise EngineBuildError(
            f"{directory} cannot be written",
            values=str(error),
            limit="engines are written below the repository",
            remedy="give this user write access, or use another checkout",
        ) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for leftover in directory.glob(".*-*"):
            if leftover.is_dir():
                shutil.rmtree(leftover, ignore_errors=True)
        yield lock
