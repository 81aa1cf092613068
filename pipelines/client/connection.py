"""Address, timeouts and key of a connection to a server, and the names of its models."""

from __future__ import annotations

import math
import os
import urllib.parse
from dataclasses import dataclass
from pathlib import Path

from pipelines.errors import InvalidRequestError


@dataclass(frozen=True)
class Timeouts:
    """Three limits in seconds, all above 0.

    Attributes:
        connect_s: Longest time until the server accepts a connection.
        read_s: Longest time between responses of a stream: a server that replaces its engine reads the prompt
            again. The first one, before which the server reads the whole prompt, has only the limit
            ``total_s``, as have answers that are not streamed.
        total_s: Longest time of the whole request; None for as long as the server works on it. The server
            gets the limit too and ends the request.
    """

    connect_s: float = 5.0
    read_s: float = 300.0
    total_s: float | None = None

    @property
    def total_us(self) -> int:
        """``total_s`` in microseconds, for the server's ``timeout`` parameter; 0 for no limit."""
        return 0 if self.total_s is None else max(1, round(self.total_s * 1e6))

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InvalidRequestError(
                    f"{name}={value} is no positive, finite number of seconds",
                    "set the longest time that the client may wait",
                )


NOTICES_DEATH = [
    ("grpc.keepalive_time_ms", 320_000),  # servers refuse more than one ping in five minutes
    ("grpc.http2.ping_timeout_ms", 20_000),  # keepalive_timeout_ms alone leaves a minute
    ("grpc.http2.max_pings_without_data", 0),  # no limit: an answer may be silent for long
]
"""Options of a gRPC channel that end a call to a machine that is gone. Nothing else bounds its silence."""

FILE_VARIABLE = "DRAFTPROOF_KEY_FILE"
"""Environment variable with the path of the key file, ``<run directory>/key``."""


def key_of_environment() -> str:
    """Return the key in the file that ``DRAFTPROOF_KEY_FILE`` names; "" if it names none.

    Raises:
        InvalidRequestError: The file cannot be read.
    """
    path = os.environ.get(FILE_VARIABLE, "")
    try:
        return Path(path).read_text(encoding="ascii").strip() if path else ""
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(
            f"the key of the server cannot be read: {FILE_VARIABLE}={path}: {error}",
            "unset the variable, or run this as the server's user",
        ) from None


SPECULATIVE = "generate"
TARGET_ALONE = "generate_target"
ENSEMBLE = "ensemble"


def address_of(url: str) -> str:
    """Return ``host:port`` of the address of a server, which may begin with ``grpc://``.

    Raises:
        InvalidRequestError: The address has another form.
    """
    parts = urllib.parse.urlsplit(url if "://" in url else f"grpc://{url}")
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme != "grpc" or not parts.hostname or port is None or parts.path.strip("/"):
        raise InvalidRequestError(
            f"the server's address is invalid: {url!r} is neither grpc://host:port nor host:port",
            "name the server's gRPC port, such as grpc://127.0.0.1:8001; over HTTP use curl, "
            "tritonclient.http, or a client of OpenAI's API",
        )
    return parts.netloc
