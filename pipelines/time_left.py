"""Say how much of a long job is done, and about how long the rest takes."""

from __future__ import annotations

import time
from collections.abc import Callable

INTERVAL_S = 5.0


class TimeLeft:
    """The progress of one job.

    Args:
        total: Size of the job, in any unit.
        report: Called with a line.
        describe: Returns the line for the amount that is done; the time that is left is added.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        total: float,
        report: Callable[[str], None],
        describe: Callable[[float], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total, self._report, self._describe, self._clock = total, report, describe, clock
        self._done = 0.0
        self._started_s = self._reported_s = clock()

    def advance(self, amount: float) -> None:
        """Count an amount as done, and report if it is time."""
        self._done += amount
        now_s = self._clock()
        if now_s - self._reported_s < INTERVAL_S or not 0 < self._done < self._total:
            return
        self._reported_s = now_s
        left_s = (now_s - self._started_s) / self._done * (self._total - self._done)
        self._report(f"{self._describe(self._done)}, about {duration(left_s)} left")


def duration(seconds: float) -> str:
    """Return a duration as people say it, such as ``40 s`` or ``7 min``; infinite if it is unknown."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min".replace("inf", "unknown")
