"""Replays requests on the candidate in the background without slowing the traffic down.

A hash decides which requests are replayed, so the choice does not depend on load. The number of concurrent
replays, their rate (a token bucket of size one, so that replays never come in bursts) and the queue are
bounded. When the queue is full, the oldest request is dropped and counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from pipelines.router.arms import ShadowSetting
from pipelines.router.choice import point

_LOG = logging.getLogger(__name__)

Item = TypeVar("Item")


def is_replayed(setting: ShadowSetting, salt: str, request_id: str) -> bool:
    """Whether the candidate replays a request; independent of all other requests."""
    return point(salt, request_id, "shadow") < setting.share


class ReplayQueue(Generic[Item]):
    """Replays requests in the background on the event loop that created it.

    Attributes:
        num_begun: Replays started so far.
        num_dropped: Requests dropped from the queue.

    Args:
        setting: Returns the current limits. None stops replays and empties the queue.
        replay: Replays one request and records the result. Cancelled by ``close``.
    """

    def __init__(
        self, setting: Callable[[], ShadowSetting | None], replay: Callable[[Item], Awaitable[None]]
    ) -> None:
        self.num_begun = 0
        self.num_dropped = 0
        self._setting = setting
        self._replay = replay
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Item] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._begun_at_s = float("-inf")  # start of the latest replay
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def offer(self, item: Item) -> None:
        """Add a request to the queue."""
        self._waiting.append(item)
        self._begin_replays()

    async def close(self) -> None:
        """Empty the queue, cancel running replays and wait until they have ended."""
        self._is_closed = True
        self._begin_replays()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _begin_replays(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        setting = None if self._is_closed else self._setting()
        if setting is None:
            self._drop_until(0)
            return
        while self._waiting and len(self._running) < setting.max_in_flight:
            wait_s = self._begun_at_s + 1 / setting.max_per_s - self._loop.time()
            if wait_s > 0:
                self._timer = self._loop.call_later(wait_s, self._begin_replays)
                break
            self._begun_at_s = self._loop.time()
            self.num_begun += 1
            task = self._loop.create_task(self._run(self._waiting.popleft()))
            self._running.add(task)
            task.add_done_callback(self._end)
        self._drop_until(setting.max_queue)

    def _drop_until(self, num_left: int) -> None:
        while len(self._waiting) > num_left:
            self._waiting.popleft()
            self.num_dropped += 1

    def _end(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._begin_replays()

    async def _run(self, item: Item) -> None:
        try:
            await self._replay(item)
        except Exception:  # an error in one replay must not end the others
            _LOG.exception("a replay failed")
