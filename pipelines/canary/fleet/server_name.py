"""Names a server for the controller of a fleet whose addresses change.

A server is its run directory: what a rollout has done to it lies there, and ends with it. A pod that replaces
another one is a new server, also at the same address; a server that restarts in its directory is the same.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
from pathlib import Path

from pipelines.atomic_file import scratch_beside

_FILE = "server_name"  # as in build/packaging/run_directory.py
_RANDOM_BYTES = 4


def server_name(run_directory: Path) -> str:
    """Return the name of the server of a run directory, which is made when it is first asked for.

    It begins with the name of the machine or pod, for people; random digits make it unique.
    """
    path = run_directory / _FILE
    if not path.is_file():
        with scratch_beside(path) as scratch, contextlib.suppress(FileExistsError):
            made = scratch / _FILE
            made.write_text(f"{socket.gethostname()}-{secrets.token_hex(_RANDOM_BYTES)}\n", encoding="utf-8")
            os.link(made, path)  # unlike a rename, it leaves the name that another thread has given
    return path.read_text(encoding="utf-8").strip()
