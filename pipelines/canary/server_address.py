"""Where a rollout's server is asked: the one that ``make serve`` started here, or one in a container."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from pipelines.canary.repository_api import RepositoryApi
from pipelines.deploy.launch import Launch
from pipelines.deploy.ports import HOST, Ports
from pipelines.deploy.server import find_server
from pipelines.errors import ServerUnavailableError

_POLL_S = 0.5


@dataclass(frozen=True)
class ServerAddress:
    """One server's.

    Attributes:
        ports: Their numbers.
        host: Name or IPv4 address.
    """

    ports: Ports
    host: str = HOST

    @classmethod
    def of(cls, run_directory: Path, host: str = "") -> ServerAddress:
        """Of the server of a run directory.

        Args:
            run_directory: Of the server.
            host: Where it answers if it runs in a container, whose processes nobody else sees; its ports are
                those of the environment. It is waited for as long as it may take to load, since whoever
                starts containers starts it and the controller at once. "" for the server that was started
                on this machine.

        Raises:
            RequestTimeoutError: It takes too long to answer.
            ServerUnavailableError: No server answers.
        """
        if not host:
            return cls(find_server(run_directory).ports)
        address = cls(Ports.from_environment(), host)
        ends_at_s = time.monotonic() + Launch.read(run_directory).ready_timeout_s
        with RepositoryApi(address.http) as api:
            while True:
                try:
                    api.index()
                    return address
                except ServerUnavailableError:
                    if time.monotonic() > ends_at_s:
                        raise
                    time.sleep(_POLL_S)

    @property
    def http(self) -> str:
        """Of the repository API."""
        return f"http://{self.host}:{self.ports.http}"

    @property
    def grpc(self) -> str:
        """Of the models."""
        return f"grpc://{self.host}:{self.ports.grpc}"

    @property
    def metrics(self) -> str:
        """Of the figures."""
        return f"http://{self.host}:{self.ports.metrics}/metrics"
