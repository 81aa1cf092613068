"""Timeouts of the client."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipelines.errors import InvalidRequestError


@dataclass(frozen=True)
class Timeouts:
    """Four limits in seconds, all above 0.

    Attributes:
        connect_s: Longest time until the server accepts a connection.
        read_s: Longest time between responses of a stream. The first one, before which the server reads the
            whole prompt, has only the limit ``total_s``, as have answers that are not streamed.
        write_s: Longest time without progress while the request is sent. gRPC has no such limit, so
            ``total_s`` applies.
        total_s: Longest time of the whole request. The server gets the limit too and ends the request. The
            client itself notices it immediately over gRPC, but over HTTP only at the next chunk, up to
            ``read_s`` later.
    """

    connect_s: float = 5.0
    read_s: float = 60.0
    write_s: float = 10.0
    total_s: float = 600.0

    @property
    def total_us(self) -> int:
        """``total_s`` in microseconds, for the server's ``timeout`` parameter."""
        return max(1, round(self.total_s * 1e6))

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not (math.isfinite(value) and value > 0):
                raise InvalidRequestError(
                    "a timeout is invalid",
                    values=f"{name}={value}",
                    limit="a positive, finite number of seconds",
                    remedy="set the longest time that the client may wait",
                )
