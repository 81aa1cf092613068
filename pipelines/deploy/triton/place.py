"""Sockets of Triton itself, which only the server's user can reach, and the key of the server.

Triton 2.51 listens on a Unix socket if an address begins with ``unix:``, both for gRPC, which appends the
port number to the name, and for metrics. Other users, browsers and other machines therefore cannot reach it;
clients use the gateway. A key for Triton's own APIs would stand on its command line, which any user of the
machine can read, so there is none.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from dataclasses import dataclass, replace
from pathlib import Path

from pipelines.atomic_file import whole_file
from pipelines.errors import ServerStartError
from pipelines.places import CODE
from pipelines.socket_path import check_socket_path

KEY_FILE = "key"
"""File in a run directory with the key of its server, readable only by the server's user."""


_SHARED_MEMORY = Path("/dev/shm")
_GRPC_PORT = 1  # only a part of the socket's name
_STUB_TIMEOUT_S = 120  # for the process of a model to start


@dataclass(frozen=True)
class TritonPlace:
    """Sockets, key and shared memory of one Triton.

    Attributes:
        sockets: Folder of its sockets, relative to the checkout if it is inside.
        server_key: Key that our models require, and the gateway for operations of operators.
        shared_memory_prefix: Prefix of the names of its regions in /dev/shm.
    """

    sockets: Path
    server_key: str
    shared_memory_prefix: str

    @classmethod
    def make(cls, run_directory: Path) -> TritonPlace:
        """Generate a new key, and write it to its file.

        Raises:
            ServerStartError: The path of a socket is too long, or the directory is not writable.
        """
        sockets = run_directory / "triton"
        if sockets.is_relative_to(CODE):
            sockets = sockets.relative_to(CODE)
        prefix = f"{prefix_of(run_directory)}{secrets.token_hex(4)}_"
        place = cls(sockets, "", prefix)
        longest = max((place.grpc.removeprefix("unix:"), place.metrics), key=len)
        check_socket_path(longest, ServerStartError)
        try:
            place.clear()
        except OSError as error:
            raise _not_writable(error) from None
        return replace(place, server_key=new_key(run_directory))

    @property
    def grpc(self) -> str:
        """Return the target of a gRPC channel to Triton."""
        return f"unix:{self.sockets / 'grpc'}:{_GRPC_PORT}"

    @property
    def metrics(self) -> str:
        """Return the path of the socket for metrics."""
        return str(self.sockets / "metrics")

    def options(self, exit_timeout_s: int) -> list[str]:
        """Return the options of ``tritonserver`` for sockets and shared memory.

        Args:
            exit_timeout_s: How long it waits for requests in flight at shutdown.
        """
        return [
            "--allow-http=false",
            f"--grpc-address=unix:{self.sockets / 'grpc'}",
            f"--grpc-port={_GRPC_PORT}",
            f"--metrics-address=unix:{self.metrics}",
            f"--exit-timeout-secs={exit_timeout_s}",
            "--disable-auto-complete-config",  # it would start every Python model twice
            f"--backend-config=python,shm-region-prefix-name={self.shared_memory_prefix}",
            f"--backend-config=python,stub-timeout-seconds={_STUB_TIMEOUT_S}",
        ]

    def variables(self) -> dict[str, str]:
        """Return the environment variables for the server's processes, which only their user can read."""
        return {
            "DRAFTPROOF_GRPC_ADDRESS": self.grpc,
            "DRAFTPROOF_KEY": self.server_key,
        }

    def clear(self) -> None:
        """Remove the sockets and the shared memory that an ended Triton left, and create the folder."""
        folder = CODE / self.sockets
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        for socket in folder.iterdir():
            socket.unlink()
        remove_shared_memory(self.shared_memory_prefix)

    def close_shared_memory(self) -> None:
        """Make the regions private, because boost creates them readable by all users, whatever the umask."""
        for region in _SHARED_MEMORY.glob(f"{self.shared_memory_prefix}*"):
            with contextlib.suppress(OSError):  # it was removed meanwhile
                region.chmod(0o600)


def remove_shared_memory(prefix: str) -> None:
    """Remove the regions of /dev/shm with a prefix; call this only after their server has ended."""
    for region in _SHARED_MEMORY.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            region.unlink()


def prefix_of(run_directory: Path) -> str:
    """Return the prefix of the regions of all servers of a run directory."""
    return f"draftproof_{hashlib.sha256(os.fsencode(run_directory.resolve())).hexdigest()[:12]}_"


def new_key(run_directory: Path) -> str:
    """Generate the key of a server, and write it to its file.

    Raises:
        ServerStartError: The directory is not writable.
    """
    key = secrets.token_urlsafe(32)
    try:
        run_directory.mkdir(parents=True, exist_ok=True)
        with whole_file(run_directory / KEY_FILE) as made:
            made.touch(0o600)
            made.write_text(key + "\n", encoding="ascii")
    except OSError as error:
        raise _not_writable(error) from None
    return key


def _not_writable(error: OSError) -> ServerStartError:
    return ServerStartError(
        f"the run directory is not writable: {error}",
        "make the server's user its owner, or use another run directory",
    )


def read_key(run_directory: Path) -> str:
    """Return the server's key in a run directory; "" if this user cannot read one."""
    try:
        return (run_directory / KEY_FILE).read_text(encoding="ascii").strip()
    except OSError:
        return ""
