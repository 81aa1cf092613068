"""The requests that are being answered: how many there may be, and the drain that waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from pipelines.errors import ServerBusyError, ServerUnavailableError

MAX_REQUESTS = 1024
"""Most requests at a time: as many as the gateway has open calls (``gateway.open_calls``)."""

_POLL_S = 0.05


class RequestsInProgress:
    """Counts requests. Used on one event loop.

    Attributes:
        is_draining: Whether new requests are refused because the server stops.
    """

    def __init__(self) -> None:
        self.is_draining = False
        self._number = 0

    def __len__(self) -> int:
        return self._number

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """Count a request during a block.

        Raises:
            ServerUnavailableError: The server stops.
            ServerBusyError: Too many requests are in progress.
        """
        if self.is_draining:
            raise ServerUnavailableError(
                "the server is shutting down",
                values=f"{self._number} requests are still answered",
                limit="no new requests",
                remedy="send the request to another server, or later",
            )
        if self._number >= MAX_REQUESTS:
            raise ServerBusyError(
                "too many requests are open",
                values=f"{self._number} requests",
                limit=f"{MAX_REQUESTS} at a time",
                remedy="send the request again later",
            )
        self._number += 1
        try:
            yield
        finally:
            self._number -= 1

    async def drain(self, timeout_s: float) -> None:
        """Refuse new requests and wait for those in progress, at most for ``timeout_s``."""
        self.is_draining = True
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        while self._number and asyncio.get_running_loop().time() < deadline_s:
            await asyncio.sleep(_POLL_S)
