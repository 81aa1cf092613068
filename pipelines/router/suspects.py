"""Finds the request that ends engines' processes, and refuses it for a while.

When a process ends, each request that it had taken may be the cause. These suspects are asked again one at a
time, so a second end has one culprit, and those that were only beside it go on. Other requests never wait.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from pipelines.errors import InvalidRequestError, ProcessEndedError
from pipelines.time_limit import within

_LOG = logging.getLogger(__name__)

REFUSED_FOR_S = 600.0
"""The cause may be gone after that: another version, more free memory."""

_MOST_REFUSED = 1000  # requests that are remembered
_LONGEST_TURN_S = 10.0  # a long prompt must not keep all others waiting


class Suspects:
    """The suspects of one router, and the requests that it refuses. Used on one event loop.

    Args:
        clock: Monotonic time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._asking = asyncio.Lock()
        self._refused: dict[str, float] = {}  # request -> until when, in the order of time

    def check(self, request: str) -> None:
        """Refuse a request that has ended two processes lately.

        Args:
            request: A digest of its prompt and parameters.

        Raises:
            InvalidRequestError: It is refused.
        """
        if self._clock() < self._refused.get(request, 0.0):
            raise _refusal()

    def refuse(self, request: str) -> InvalidRequestError:
        """Refuse a request from now on, and return the error."""
        _LOG.error("a request has ended two processes: refused for %.0f s", REFUSED_FOR_S)
        self._refused.pop(request, None)
        self._refused[request] = self._clock() + REFUSED_FOR_S
        if len(self._refused) > _MOST_REFUSED:
            del self._refused[next(iter(self._refused))]
        return _refusal()

    async def turn(self, wait_s: float) -> Turn:
        """Wait until no other suspect is being asked.

        Args:
            wait_s: Most seconds.

        Raises:
            ProcessEndedError: The time is over.
        """
        try:
            return await within(wait_s, self._next())
        except asyncio.TimeoutError:
            raise ProcessEndedError(
                "the engine's process ended, and the requests that it had taken are asked again one by one: "
                f"this one had no turn within {wait_s:.0f} s",
                "send the request again",
            ) from None

    async def _next(self) -> Turn:
        await self._asking.acquire()
        return Turn(self._asking)


class Turn:
    """The turn of one suspect; it ends by itself after a while."""

    def __init__(self, asking: asyncio.Lock) -> None:
        self._asking = asking
        self._timer = asyncio.get_running_loop().call_later(_LONGEST_TURN_S, self.end)
        self.lasts = True

    def end(self) -> None:
        """Let the next suspect be asked."""
        if self.lasts:
            self.lasts = False
            self._timer.cancel()
            self._asking.release()


def _refusal() -> InvalidRequestError:
    return InvalidRequestError(
        "two processes of the engine ended when they answered this request",
        f"change the request: the same one is refused for {REFUSED_FOR_S / 60:.0f} minutes; the server's log "
        "has the cause",
    )
