"""Time steps of an engine, and how long its threads waited for a core meanwhile.

The scheduler of Linux counts both times for each thread, in ``/proc/self/task/<thread>/schedstat``:
https://docs.kernel.org/scheduler/sched-stats.html.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TASKS = Path("/proc/self/task")
_QUIET_SHARE = 0.05  # of the duration of a step
_LEAST_QUIET = 2  # quiet steps of each kind that are needed to go by their durations

_Threads = dict[str, tuple[int, int]]
"""Thread -> nanoseconds that it ran, and nanoseconds that it was ready and waited for a core."""


@dataclass(frozen=True)
class StepTime:
    """Times of one step, in seconds.

    Attributes:
        wall_s: Duration.
        busiest_s: CPU time of the thread that computed longest. Other programs hardly change it.
        ran_s: CPU time of all threads.
        waited_s: Time during which a thread was ready and others had the cores, added over all threads.
    """

    wall_s: float
    busiest_s: float
    ran_s: float
    waited_s: float

    @property
    def was_quiet(self) -> bool:
        """Whether hardly any thread had to wait."""
        return self.waited_s <= _QUIET_SHARE * self.wall_s


def time_step(step: Callable[[], object]) -> StepTime:
    """Run a step and time it."""
    before = _threads()
    started_s = time.perf_counter()
    step()
    wall_s = time.perf_counter() - started_s
    after = _threads()
    ran_s = [1e-9 * (ran - before.get(thread, (0, 0))[0]) for thread, (ran, _) in after.items()]
    waited_s = [1e-9 * (waited - before.get(thread, (0, 0))[1]) for thread, (_, waited) in after.items()]
    return StepTime(wall_s, max(ran_s, default=0.0), sum(ran_s), sum(waited_s))


def busy_share(steps: Iterable[StepTime]) -> float | None:
    """Return the share of the time of its threads that a process waited for a core.

    Returns:
        From 0, if nothing else ran, to 1; None if this kernel does not count it.
    """
    known = list(steps)
    ran_s, waited_s = sum(step.ran_s for step in known), sum(step.waited_s for step in known)
    return waited_s / (ran_s + waited_s) if ran_s else None


def has_enough_quiet(steps: Iterable[StepTime]) -> bool:
    """Return whether enough of these steps were quiet to trust their shortest duration."""
    return sum(step.was_quiet for step in steps) >= _LEAST_QUIET


def quiet_seconds(steps: Iterable[StepTime]) -> float:
    """Return the shortest duration of the quiet ones among equal steps; there must be one."""
    return min(step.wall_s for step in steps if step.was_quiet)


def busy_seconds(steps: Iterable[StepTime]) -> float:
    """Estimate the duration of equal steps without other programs: the CPU time of the busiest thread.

    Durations would distort the relation of short steps to long ones. A short step can run between two turns
    of another program; one that is longer than a turn never can.
    """
    return statistics.median(step.busiest_s for step in steps)


def _threads() -> _Threads:
    found = {}
    for thread in _TASKS.iterdir():
        with suppress(OSError):  # it has ended, or the kernel keeps no such statistics
            ran, waited, _ = (thread / "schedstat").read_text(encoding="ascii").split()
            found[thread.name] = int(ran), int(waited)
    return found
