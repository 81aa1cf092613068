"""The requests that are open now: how many, which tells the load, and since when the oldest is."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

_UNIX_TIME_AT_ZERO_S = time.time() - time.monotonic()


def unix_time_s() -> float:
    """Unix time that never goes back, also when the machine's clock is set."""
    return _UNIX_TIME_AT_ZERO_S + time.monotonic()


class OpenRequests:
    """Counts requests in and out; on one thread.

    Args:
        clock: Unix seconds, never going back.
    """

    def __init__(self, clock: Callable[[], float] = unix_time_s) -> None:
        self._clock = clock
        self._numbers = itertools.count()
        self._arrived_at_s: dict[int, float] = {}  # in the order of arrival

    def __len__(self) -> int:
        return len(self._arrived_at_s)

    def begin(self) -> tuple[int, float]:
        """A number for a request that arrives, and the time."""
        number, arrived_at_s = next(self._numbers), self._clock()
        self._arrived_at_s[number] = arrived_at_s
        return number, arrived_at_s

    def end(self, number: int) -> float:
        """Take a request out.

        Returns:
            ``Observation.oldest_open_at_s`` for what is noted about it, at once and before anything else
            ends: arrival of the oldest that is left, or the time.
        """
        del self._arrived_at_s[number]
        return next(iter(self._arrived_at_s.values()), self._clock())
