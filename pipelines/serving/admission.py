"""How many requests are answered at once, and how many may wait."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pipelines.errors import RequestTimeoutError, ServerBusyError


class Admission:
    """First come, first served; used on one event loop.

    Args:
        max_running: Requests in work at once.
        max_waiting: Requests that wait; one more is refused at once.
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

    @asynccontextmanager
    async def slot(self, deadline_s: float | None = None) -> AsyncIterator[None]:
        """Hold one of the places; waits in the queue for it.

        Args:
            deadline_s: Time on ``time.monotonic``'s clock after which waiting has no use.

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
                "the queue is full",
                values=f"{len(self._waiting)} requests wait, {self.num_running} run",
                limit=f"max_queue_size={self._max_waiting}, max_batch_size={self._max_running}",
                remedy="send the request again later, or serve with a larger max_queue_size",
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        timeout_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
        try:
            # The shield keeps the timeout from cancelling a turn that was given in the same moment.
            await asyncio.wait_for(asyncio.shield(turn), timeout_s)
        except BaseException as error:
            if turn.done():
                self._hand_on()
            else:
                self._waiting.remove(turn)
                turn.cancel()
            if isinstance(error, asyncio.TimeoutError):
                raise RequestTimeoutError(
                    "the request's deadline passed in the queue",
                    values=f"{len(self._waiting)} requests wait, {self.num_running} run",
                    limit="the timeout sent with the request",
                    remedy="allow more time or send fewer requests at once",
                ) from None
            raise

    def _hand_on(self) -> None:
        """Give the place to whoever waits longest; ``num_running`` then stays as it is."""
        if self._waiting:
            self._waiting.popleft().set_result(None)
        else:
            self.num_running -= 1
