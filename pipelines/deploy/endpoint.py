"""The address and ports of a server, and how long it waits for requests in flight at shutdown."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from pipelines.deploy.ports import HOST, Ports

DRAIN_S = 45  # at shutdown, for requests in flight: what Kubernetes' gateways allow them
EXIT_TIMEOUT_S = 10  # then, for the models


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

    def options(self) -> list[str]:
        """Return this endpoint as options of ``pipelines.triton.gateway`` and ``pipelines.deploy``."""
        numbers = [
            text for name, port in asdict(self.ports).items() for text in (f"--{name}-port", str(port))
        ]
        times = ["--exit-timeout-s", str(self.exit_timeout_s), "--drain-s", str(self.drain_s)]
        settings = ["--front-door", str(self.front_door)] if self.front_door else []
        return [*numbers, "--address", self.address, *times, *settings]
