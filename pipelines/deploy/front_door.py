"""Settings of the front door, which serves OpenAI's API. The gateway and the front door read them."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from pipelines import configuration
from pipelines.deploy.ports import HOST, near
from pipelines.errors import ServerStartError

HostName = Annotated[str, Field(pattern=r"^[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*$", max_length=253)]
"""Name of a host in small letters, without a port."""

_BACKLOG = 4096  # connections of a burst that wait to be accepted
_SEND_BYTES = 128 << 10  # that the operating system keeps for a client; by default it may be 4 MiB
_REMEDY = "correct the file; docs/how-to/deploy.md lists the settings"


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
        separate_prompt_caches: Whether a request reuses only what requests with the same API key have
            computed, so that nobody learns from the time of an answer what others have asked.
        tls: Certificate; None for plain HTTP.
        cors_origins: Origins of web pages that may use the API, such as ``https://chat.example.org``.
        hosts: Names by which the server is asked besides its addresses, such as ``models.example.org``. They
            count for the gateway and its metrics too.
        open_metrics: Whether ``/metrics`` needs no API key. That is safe where only a proxy reaches the port
            and keeps this path from strangers.
        max_kept_bytes: Most bytes of responses that are kept for requests which continue them; 0 keeps none.
        max_body_bytes: Largest body.
        header_timeout_s: Longest time until the headers of a request have arrived, and of an idle connection.
        body_timeout_s: Longest time until the body has arrived.
        write_timeout_s: Longest time that a client takes no data of its answer.
        timeout_s: Longest time of an answer; None for as long as its engine works on it.
        request_log: File that gets a line of JSON for each request; "" for none.
        log_texts: Whether these lines have prompts and answers.
    """

    address: str = HOST
    keys: str = ""
    separate_prompt_caches: bool = False
    tls: Tls | None = None
    cors_origins: tuple[str, ...] = ()
    hosts: tuple[HostName, ...] = ()
    open_metrics: bool = False
    max_kept_bytes: NonNegativeInt = 64 << 20
    max_body_bytes: PositiveInt = 2 << 20  # the gateway's
    header_timeout_s: PositiveFloat = 30.0
    body_timeout_s: PositiveFloat = 30.0
    write_timeout_s: PositiveFloat = 60.0
    timeout_s: PositiveFloat | None = None
    request_log: str = ""
    log_texts: bool = False

    def listen(self, port: int) -> socket.socket:
        """Return a socket that listens on ``address``; connections inherit its limits.

        Args:
            port: Port to listen on; 0 for any that is free.

        Raises:
            ServerStartError: The port cannot be listened on.
        """
        family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
        try:
            listening = socket.create_server((self.address, port), family=family, backlog=_BACKLOG)
        except OSError as error:
            raise ServerStartError(
                f"the front door cannot listen on {self.address}:{port}: {error}",
                "choose another port with --openai-port or --port, or change the address in the settings",
            ) from None
        # What a client does not read stays small, and is dropped after a while.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
        timeout_ms = round(1000 * self.write_timeout_s)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)
        return listening

    def url(self, port: int) -> str:
        """Return the address of a front door with these settings, for programs on the same machine."""
        return f"{'https' if self.tls else 'http'}://{near(self.address, port)}"

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
        try:
            is_loopback = ipaddress.ip_address(self.address).is_loopback
        except ValueError:
            raise ServerStartError(
                f"{path}: address={self.address!r} is not an IP address such as 127.0.0.1, 0.0.0.0 or ::",
                _REMEDY,
            ) from None
        if not (is_loopback or self.keys):
            raise ServerStartError(
                f"{path}: everybody could use this server: address={self.address} and no keys",
                "make one with 'draftproof api-key', and name its file as keys",
            )
