"""Limits how many requests run concurrently and how many may wait."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pipelines.errors import RequestTimeoutError, ServerBusyError
from pipelines.time_limit import within


class Admission:
    """Admits requests first come, first served. Used on one event loop.

    Args:
        max_running: Maximum of concurrent requests.
        max_waiting: Maximum of waiting requests; further ones are refused.
    """

    def __init__(self, max_running: int, max_waiting: int) -> None:
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.num_running = 0

    @property
    def num_waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    @property
    def _load(self) -> str:
        return f"{len(self._waiting)} requests wait, {self.num_running} run"

    @asynccontextmanager
    async def slot(self, deadline_s: float | None = None) -> AsyncIterator[None]:
        """Hold a place for the duration of the context; waits in the queue for it.

        Args:
            deadline_s: Deadline on the clock of ``time.monotonic``.

        Raises:
            ServerBusyError: The queue is full.
            RequestTimeoutError: The deadline passed in the queue.
        """
        if self.num_running < self._max_running:
            self.num_running += 1
        else:
            await self._wait(deadline_s)
        try:
            yield
        finally:
            self._hand_on()

    async def _wait(self, deadline_s: float | None) -> None:
        if len(self._waiting) >= self._max_waiting:
            raise ServerBusyError(
                f"the queue is full: {self._load}, with max_queue_size={self._max_waiting} and "
                f"max_batch_size={self._max_running}",
                "send the request again later, or serve with a larger max_queue_size",
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        timeout_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
        try:
            # The shield keeps a timeout from cancelling a turn that is granted at the same moment.
            await within(timeout_s, asyncio.shield(turn))
        except BaseException as error:
            if turn.done():
                self._hand_on()
            else:
                self._waiting.remove(turn)
                turn.cancel()
            if isinstance(error, asyncio.TimeoutError):
                raise RequestTimeoutError(
                    f"the request's deadline passed in the queue: {self._load}",
                    "allow more time or send fewer concurrent requests",
                ) from None
            raise

    def _hand_on(self) -> None:
        """Pass the place on to the request that has waited longest; ``num_running`` then stays the same."""
        if self._waiting:
            self._waiting.popleft().set_result(None)
        else:
            self.num_running -= 1
