"""The three ports of a server, checked before anything is started.

Triton notices a taken port late and in the middle of its log.
"""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import astuple, dataclass
from pathlib import Path

from pipelines.errors import PortInUseError, ServerStartError

HOST = "127.0.0.1"
"""Triton has no authentication, so it listens on loopback only."""


@dataclass(frozen=True)
class Ports:
    """Where a server listens.

    Attributes:
        http: KServe v2 over HTTP, and the generate endpoints.
        grpc: KServe v2 over gRPC.
        metrics: Prometheus.
    """

    http: int = 8000
    grpc: int = 8001
    metrics: int = 8002

    @classmethod
    def from_environment(cls) -> Ports:
        """``DRAFTPROOF_HTTP_PORT``, ``DRAFTPROOF_GRPC_PORT``, ``DRAFTPROOF_METRICS_PORT``, or the defaults.

        Raises:
            ServerStartError: A variable holds no port number.
        """
        values = {}
        for name in ("http", "grpc", "metrics"):
            variable = f"DRAFTPROOF_{name.upper()}_PORT"
            text = os.environ.get(variable)
            if text is None:
                continue
            if not text.isdecimal():
                raise ServerStartError(
                    "an environment variable holds no port",
                    values=f"{variable}={text!r}",
                    limit="1 to 65535",
                    remedy="mend or unset it",
                )
            values[name] = int(text)
        return cls(**values)

    @classmethod
    def free(cls) -> Ports:
        """Three ports that nobody listens on at this moment."""
        sockets = [socket.socket() for _ in range(3)]
        try:
            for listener in sockets:
                listener.bind((HOST, 0))
            return cls(*(listener.getsockname()[1] for listener in sockets))
        finally:
            for listener in sockets:
                listener.close()

    def check_free(self) -> None:
        """Refuse ports that cannot be listened on.

        Raises:
            PortInUseError: Another process listens on one of them; its pid is given if it can be seen.
            ServerStartError: A number is no port, or two are equal.
        """
        numbers = astuple(self)
        if len(set(numbers)) < len(numbers) or not all(0 < number < 65536 for number in numbers):
            raise ServerStartError(
                "the ports cannot be used",
                values=f"HTTP {self.http}, gRPC {self.grpc}, metrics {self.metrics}",
                limit="three different numbers from 1 to 65535",
                remedy="choose others with HTTP_PORT, GRPC_PORT and METRICS_PORT",
            )
        for name, number in zip(("HTTP", "gRPC", "metrics"), numbers, strict=True):
            _check_free(name, number)


def _check_free(name: str, number: int) -> None:
    with socket.socket() as listener:
        # As servers do: a port whose last connections are still winding down counts as free.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, number))
            listener.listen()
        except OSError as error:
            variable = f"{name.upper()}_PORT"
            if error.errno != errno.EADDRINUSE:
                raise ServerStartError(
                    f"the {name} port cannot be used",
                    values=f"port {number}: {error.strerror}",
                    limit="ports below 1024 need privileges",
                    remedy=f"choose another with {variable}",
                ) from None
            owner = _listener(number)
            raise PortInUseError(
                f"the {name} port is in use",
                values=f"port {number}" + (f", held by {owner}" if owner else ""),
                limit="nothing else may listen on it",
                remedy=f"stop that process ('make stop' if it is ours) or choose another with {variable}",
            ) from None


def _listener(number: int) -> str:
    """``process 123 (name)`` that listens on a port, as far as this user may see; else an empty text."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/net/{table}").read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            is_listening = fields[3] == "0A"
            if is_listening and int(fields[1].rpartition(":")[2], 16) == number:
                inodes.add(f"socket:[{fields[9]}]")
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(str(link.readlink()) in inodes for link in (process / "fd").iterdir()):
                name = (process / "comm").read_text(encoding="utf-8").strip()
                return f"process {process.name} ({name})"
        except OSError:  # gone meanwhile, or another user's
            continue
    return ""
