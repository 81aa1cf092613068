"""The candidate repeats what the stable pair answered, beside the traffic and never in its way.

Which requests it repeats is decided by hash, so that it is no matter of load. How many at a time, how many
a second (a token bucket that holds one token, so that replays never come in a burst) and how many wait is
bounded; where there is no room the oldest goes, which is counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from pipelines.routing.arms import ShadowSetting
from pipelines.routing.choice import point

_LOG = logging.getLogger(__name__)

Item = TypeVar("Item")


def is_repeated(setting: ShadowSetting, salt: str, request_id: str) -> bool:
    """Whether the candidate is to repeat a request, whatever became of others."""
    return point(salt, request_id, "shadow") < setting.share


class Shadow(Generic[Item]):
    """Repeats requests in the background, on the loop that makes it.

    Attributes:
        num_begun: Replays so far.
        num_dropped: Requests that were to be repeated, and for which there was no room or no time.

    Args:
        setting: What holds now, asked whenever a replay might begin; None for no replay, which drops what
            waits.
        replay: Repeats one request and notes what came of it. Cancelled when the shadow closes.
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
        self._begun_at_s = float("-inf")  # the latest one
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def offer(self, item: Item) -> None:
        """Repeat a request as soon as there is room; returns at once."""
        self._waiting.append(item)
        self._begin_replays()

    async def close(self) -> None:
        """Drop what waits, cancel what runs, and wait until that has ended."""
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
        except Exception:  # a defect in a replay must not end the others
            _LOG.exception("a replay failed")
