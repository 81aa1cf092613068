"""The ports of a server, checked before it starts, and how it ends.

Triton itself notices an occupied port late, in the middle of its log.
"""

from __future__ import annotations

import errno
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

from pipelines.errors import PortInUseError, ServerStartError

HOST = "127.0.0.1"
"""Triton has no authentication, so it listens on loopback only."""

DRAIN_S = 45  # at shutdown, for requests in flight: what Kubernetes' gateways allow them
EXIT_TIMEOUT_S = 10  # then, for the models

PORTS = ("http", "grpc", "metrics", "openai")
"""Names of the ports, in options too."""

_WRITTEN = {"http": "HTTP", "grpc": "gRPC", "metrics": "metrics", "openai": "OpenAI"}


@dataclass(frozen=True)
class Ports:
    """Ports of a server.

    Attributes:
        http: KServe v2 over HTTP, and the generate endpoints.
        grpc: KServe v2 over gRPC.
        metrics: Metrics for Prometheus.
        openai: OpenAI's API; 0 for none.
    """

    http: int = 8000
    grpc: int = 8001
    metrics: int = 8002
    openai: int = 9000  # as in NVIDIA's own front end

    @classmethod
    def free(cls, *, with_openai: bool = False) -> Ports:
        """Return ports that are free at the moment.

        Args:
            with_openai: Whether one of them is for OpenAI's API, which takes a process of its own.
        """
        sockets = [socket.socket() for _ in range(4 if with_openai else 3)]
        try:
            for listener in sockets:
                listener.bind((HOST, 0))
            http, grpc, metrics, *openai = (listener.getsockname()[1] for listener in sockets)
            return cls(http, grpc, metrics, openai[0] if with_openai else 0)
        finally:
            for listener in sockets:
                listener.close()

    def check_free(self) -> None:
        """Check that a server can listen on these ports.

        Raises:
            PortInUseError: Another process listens on one of them.
            ServerStartError: A number is not a port, or two are equal.
        """
        used = {name: number for name, number in asdict(self).items() if number or name != "openai"}
        numbers = tuple(used.values())
        if len(set(numbers)) < len(numbers) or not all(0 < number < 65536 for number in numbers):
            shown = ", ".join(f"{_WRITTEN[name]} {number}" for name, number in used.items())
            raise ServerStartError(
                f"the ports are not different numbers from 1 to 65535: {shown}",
                "choose others with --http-port, --grpc-port, --metrics-port and --openai-port",
            )
        for name, number in used.items():
            _check_free(_WRITTEN[name], number)


@dataclass(frozen=True)
class Endpoint:
    """Address and ports of a server, and how it ends.

    Attributes:
        ports: Its ports.
        address: Address that the gateway listens on. Any but loopback needs a proxy with TLS and limits.
        exit_timeout_s: How long Triton may take to unload its models at shutdown.
        drain_s: How long the server waits for requests in flight at shutdown, before that.
        front_door: File with the settings of the front door (``front_door.py``); None for the defaults.
    """

    ports: Ports
    address: str = HOST
    exit_timeout_s: int = EXIT_TIMEOUT_S
    drain_s: int = DRAIN_S
    front_door: Path | None = None


def near(address: str, port: int) -> str:
    """Return ``host:port``, by which programs of this machine reach what listens on an address."""
    host = {"0.0.0.0": HOST, "::": "::1"}.get(address, address)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _check_free(name: str, number: int) -> None:
    with socket.socket() as listener:
        # As servers do, so that a port with connections in TIME_WAIT counts as free.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, number))
            listener.listen()
        except OSError as error:
            option = f"--{name.lower()}-port"
            if error.errno != errno.EADDRINUSE:
                raise ServerStartError(
                    f"the {name} port {number} cannot be used: {error.strerror}",
                    f"choose another with {option}",
                ) from None
            raise PortInUseError(
                f"the {name} port {number} is in use",
                f"stop what 'ss -ltnp' lists for it, or choose another with {option}",
            ) from None
