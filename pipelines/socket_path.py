"""Checks the paths of Unix sockets, and whether a process listens there."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from pipelines.errors import DraftproofError

MAX_SOCKET_BYTES = 107  # longest path in sockaddr_un without its terminating zero (man 7 unix)


def check_socket_path(path: str, error: type[DraftproofError]) -> None:
    """Raise ``error`` if Linux cannot open a socket at this path."""
    num_bytes = len(os.fsencode(path))
    if not 0 < num_bytes <= MAX_SOCKET_BYTES:
        raise error(
            f"the path of a socket has {num_bytes} bytes, and not 1 to {MAX_SOCKET_BYTES}: {path!r:.200}",
            "use a run directory inside the checkout, or with a shorter path",
        )


def is_listening(path: Path) -> bool:
    """Return whether a process listens at a socket, whose path may be too long to be opened directly."""
    try:
        folder = os.open(path.parent, os.O_PATH)
    except OSError:
        return False
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.setblocking(False)
            connection.connect(f"/proc/self/fd/{folder}/{path.name}")
    except BlockingIOError:
        return True  # further callers wait in its backlog
    except OSError:
        return False
    finally:
        os.close(folder)
    return True
