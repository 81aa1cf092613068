"""Lock the run directory of a server in a container.

The directory is on a persistent volume, because rollouts add and remove models in it and the router reads its
weights from it.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from pipelines.errors import ServerStartError

LOCK = "server.lock"


def lock_run_directory(directory: Path) -> None:
    """Lock a run directory until this process ends, even after an ``exec``.

    Two servers in one directory would replace each other's sockets and share one table of arms.

    Raises:
        ServerStartError: Another server has the lock, or the directory is not writable.
    """
    path = directory / LOCK
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ServerStartError(
            "the run directory is not writable",
            values=f"{path}: {error.strerror}, user {os.getuid()}",
            limit="needs a directory on a volume that the server's user can write to",
            remedy="create it, and make that user its owner",
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise ServerStartError(
            "another server uses this run directory",
            values=str(path),
            limit="one server per run directory",
            remedy="stop that server first, or give this one its own volume",
        ) from None
    os.set_inheritable(lock, True)
