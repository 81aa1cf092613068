"""Settings of the front door, which serves OpenAI's API. The gateway and the front door read them."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import PositiveFloat, PositiveInt

from pipelines import configuration
from pipelines.deploy.ports import HOST
from pipelines.errors import ServerStartError

_ADDRESS = re.compile(r"[^\s/:]+:[0-9]{1,5}|\[[0-9a-fA-F:]+\]:[0-9]{1,5}")
_REMEDY = "correct the file; docs/reference/openai.md lists the settings"


@dataclass(frozen=True)
class Tls:
    """Files of a certificate, PEM; they are read again when they change.

    Attributes:
        certificate: The certificate, and the chain up to one that clients know.
        key: Its private key, without a password.
    """

    certificate: str
    key: str


@configuration.strict
@dataclass(frozen=True)
class FrontDoorSettings:
    """Settings of the front door. Relative paths count from the folder of the file.

    Attributes:
        address: Address that it listens on. Any but loopback needs ``keys``.
        keys: File of API keys (``draftproof api-key``); "" answers everybody who reaches the port.
        tls: Certificate; None for plain HTTP.
        cors_origins: Origins of web pages that may use the API, such as ``https://chat.example.org``.
        max_body_bytes: Largest body.
        header_timeout_s: Longest time until the headers of a request have arrived, and of an idle connection.
        body_timeout_s: Longest time until the body has arrived.
        write_timeout_s: Longest time that a client takes no data of its answer.
        request_log: File that gets a line of JSON for each request; "" for none.
        log_texts: Whether these lines have prompts and answers.
        servers: ``host:port`` of the gRPC server of each server of a fleet, which all serve the same pair;
            empty for the server to which the front door belongs.
    """

    address: str = HOST
    keys: str = ""
    tls: Tls | None = None
    cors_origins: tuple[str, ...] = ()
    max_body_bytes: PositiveInt = 2 << 20  # the gateway's
    header_timeout_s: PositiveFloat = 30.0
    body_timeout_s: PositiveFloat = 30.0
    write_timeout_s: PositiveFloat = 60.0
    request_log: str = ""
    log_texts: bool = False
    servers: tuple[str, ...] = ()

    def url(self, port: int) -> str:
        """Return the address of a front door with these settings, for programs on the same machine."""
        address = ipaddress.ip_address(self.address)
        if address.is_unspecified:
            address = ipaddress.ip_address("::1" if address.version == 6 else HOST)
        host = f"[{address}]" if address.version == 6 else str(address)
        return f"{'https' if self.tls else 'http'}://{host}:{port}"

    @classmethod
    def read(cls, path: Path | None) -> FrontDoorSettings:
        """Read a YAML file.

        Args:
            path: The file; None for the defaults.

        Raises:
            ServerStartError: It cannot be read, a setting is unknown or invalid, or the address needs keys.
        """
        if path is None:
            return cls()
        settings = configuration.read_yaml(cls, path, ServerStartError, _REMEDY)
        settings._check(path)
        tls, folder = settings.tls, path.resolve().parent
        return replace(
            settings,
            keys=str(folder / settings.keys) if settings.keys else "",
            request_log=str(folder / settings.request_log) if settings.request_log else "",
            tls=Tls(str(folder / tls.certificate), str(folder / tls.key)) if tls else None,
        )

    def _check(self, path: Path) -> None:
        self._check_servers(path)
        try:
            is_loopback = ipaddress.ip_address(self.address).is_loopback
        except ValueError:
            raise ServerStartError(
                f"{path}: address is not an IP address",
                values=f"address={self.address!r}",
                limit="such as 127.0.0.1, 0.0.0.0 or ::",
                remedy=_REMEDY,
            ) from None
        if not (is_loopback or self.keys):
            raise ServerStartError(
                f"{path}: everybody could use this server",
                values=f"address={self.address}, no keys",
                limit="any address but loopback needs API keys",
                remedy="make one with 'draftproof api-key', and name its file as keys",
            )

    def _check_servers(self, path: Path) -> None:
        wrong = [each for each in self.servers if not _ADDRESS.fullmatch(each)]
        wrong += [each for each in self.servers if self.servers.count(each) > 1]
        if wrong:
            raise ServerStartError(
                f"{path}: an address of servers cannot be used",
                values=f"servers has {wrong[0]!r}",
                limit="host:port of a server's gRPC port, each once",
                remedy=_REMEDY,
            )
