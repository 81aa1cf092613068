"""Find the addresses of a rollout's server, which ``draftproof serve`` or a container has started."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from pipelines.canary.controller.repository_api import RepositoryApi
from pipelines.deploy.ports import HOST, Ports
from pipelines.deploy.server import find_server
from pipelines.deploy.triton.launch import Launch
from pipelines.deploy.triton.place import read_key
from pipelines.errors import ServerUnavailableError

_POLL_S = 0.5


@dataclass(frozen=True)
class ServerAddress:
    """Addresses and key of one server.

    Attributes:
        ports: Port numbers.
        key: Key of the server for its model repository and internal models.
        host: Host name or IPv4 address.
    """

    ports: Ports
    key: str
    host: str = HOST

    @classmethod
    def of(cls, run_directory: Path, host: str = "") -> ServerAddress:
        """Find the server of a run directory.

        Args:
            run_directory: Run directory of the server.
            host: Host of a server in a container, whose processes are not visible here; its ports come from
                the environment. Such a server may still be loading, because its container starts together
                with the controller's, so this waits for it. "" for the server started on this machine.

        Raises:
            RequestTimeoutError: The server did not answer in time.
            ServerUnavailableError: No server answers.
        """
        if not host:
            server = find_server(run_directory)
            return cls(server.ports, server.key)
        ends_at_s = time.monotonic() + Launch.read(run_directory).ready_timeout_s
        while True:
            # its key changes at each start
            address = cls(Ports.from_environment(), read_key(run_directory), host)
            try:
                with closing(RepositoryApi(address.http, address.key)) as api:
                    api.index()
                return address
            except ServerUnavailableError:
                if time.monotonic() > ends_at_s:
                    raise
                time.sleep(_POLL_S)

    @property
    def http(self) -> str:
        """Address of the repository API."""
        return f"http://{self.host}:{self.ports.http}"

    @property
    def grpc(self) -> str:
        """Address of the models."""
        return f"grpc://{self.host}:{self.ports.grpc}"

    @property
    def metrics(self) -> str:
        """Address of the metrics."""
        return f"http://{self.host}:{self.ports.metrics}/metrics"
