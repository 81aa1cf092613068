"""Counts the requests in flight of a router, and knows when the oldest of them arrived."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

_UNIX_TIME_AT_ZERO_S = time.time() - time.monotonic()


def unix_time_s() -> float:
    """Return Unix time that is monotonic even when the system clock is changed."""
    return _UNIX_TIME_AT_ZERO_S + time.monotonic()


class OpenRequests:
    """Tracks requests in flight. Not thread-safe.

    Args:
        clock: Monotonic Unix time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = unix_time_s) -> None:
        self._clock = clock
        self._numbers = itertools.count()
        self._arrived_at_s: dict[int, float] = {}  # in the order of arrival

    def __len__(self) -> int:
        return len(self._arrived_at_s)

    def begin(self) -> tuple[int, float]:
        """Register a request that arrives; returns its number and the time."""
        number, arrived_at_s = next(self._numbers), self._clock()
        self._arrived_at_s[number] = arrived_at_s
        return number, arrived_at_s

    def end(self, number: int) -> float:
        """Remove a request that ended.

        Returns:
            ``Observation.oldest_open_at_s`` for its observation, which must be recorded before another
            request ends: the arrival of the oldest request that is left, or the current time if none is.
        """
        del self._arrived_at_s[number]
        return next(iter(self._arrived_at_s.values()), self._clock())
