"""How long the client waits, and for what."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pipelines.errors import InvalidRequestError


@dataclass(frozen=True)
class Timeouts:
    """Four limits in seconds, all positive; none is implicit.

    Attributes:
        connect_s: Until the server accepts a connection.
        read_s: Longest silence inside a stream. An answer that is not streamed is silent until it is
            complete, so only ``total_s`` bounds it.
        write_s: Longest time without progress while the request is sent. gRPC has no such limit of its
            own: there ``total_s`` covers it.
        total_s: The whole request. The server is told, too, and ends the request then. The client itself
            notices it at once over gRPC, and at the next chunk, so up to ``read_s`` late, over HTTP.
    """

    connect_s: float = 5.0
    read_s: float = 60.0
    write_s: float = 10.0
    total_s: float = 600.0

    @property
    def total_us(self) -> int:
        """``total_s`` in microseconds, as the server's ``timeout`` parameter wants it."""
        return max(1, round(self.total_s * 1e6))

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not (math.isfinite(value) and value > 0):
                raise InvalidRequestError(
                    "a timeout has no meaning",
                    values=f"{name}={value}",
                    limit="it must be a positive, finite number of seconds",
                    remedy="set how long the client may wait",
                )
