"""Predicts how long a step of an engine takes, by its rows.

The table begins with what a few steps took at start (``Executor.warm_up``), and every step corrects it: a
number of rows that is in use follows its own steps, and the others follow the machine, which other programs
or a longer context may slow down. A number of rows that once looked too slow is forgotten again, since nobody
would try it otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_OWN_SHARE = 0.2  # of a new step in the time of its number of rows: about five steps are remembered
_COMMON_SHARE = 0.05  # the same in the speed of the machine, which all steps tell
_TRUST = 0.3  # by which a step raises the weight of its own number of rows against the machine's
_FORGOTTEN = 0.005  # of that weight with each step of another number of rows
_LARGEST_CHANGE = 0.7  # of a logarithm by one step, so that a moment without a core does not count as many


class StepTimes:
    """The time of an engine's step, which never falls with more rows.

    Args:
        rows: Numbers of rows that were timed, ascending, at least two.
        seconds: Time of a step of each. Those between are interpolated, those beyond extrapolated.
    """

    def __init__(self, rows: Sequence[int], seconds: Sequence[float]) -> None:
        self._guess = _rising(np.interp(np.arange(1, rows[-1] + 1), rows, seconds))
        self._own = np.zeros(len(self._guess))  # logarithm of the ratio of a step's time to the guess
        self._weight = np.zeros(len(self._guess))
        self._common = 0.0
        self._num_steps = 0
        self._seconds = self._guess

    @property
    def max_rows(self) -> int:
        """Largest number of rows that was timed."""
        return len(self._guess)

    def seconds(self, rows: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return the time of steps with these numbers of rows, at least 1; float64 of the same shape."""
        counts = np.asarray(rows)
        beyond = np.maximum(counts - self.max_rows, 0) / self.max_rows
        times: npt.NDArray[np.float64] = self._seconds[np.minimum(counts, self.max_rows) - 1] * (1 + beyond)
        return times

    def row_s(self, rows: int) -> float:
        """Return what one more row costs in a step of about this many, seconds."""
        least, most = max(rows - 2, 1), rows + 1
        return float(self.seconds(most) - self.seconds(least)) / (most - least)

    def observe(self, rows: int, seconds: float) -> None:
        """Learn from a step; one with more rows than were timed tells nothing."""
        if rows > self.max_rows:
            return
        index = rows - 1
        ratio = math.log(seconds / self._guess[index])
        self._num_steps += 1
        share = max(_COMMON_SHARE, 1 / self._num_steps)
        self._common += share * _limited(ratio - self._common, self._num_steps)
        if self._weight[index] < _TRUST / 2:
            self._own[index] = ratio
        else:
            self._own[index] += _OWN_SHARE * _limited(ratio - self._own[index], 2)
        self._weight *= 1 - _FORGOTTEN
        self._weight[index] += _TRUST * (1 - self._weight[index])
        logs = self._weight * self._own + (1 - self._weight) * self._common
        self._seconds = _rising(self._guess * np.exp(logs))


def _limited(change: float, num_steps: int) -> float:
    return change if num_steps == 1 else min(max(change, -_LARGEST_CHANGE), _LARGEST_CHANGE)


def _rising(seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return times that do not fall: one that is above a later one is wrong, since it can be padded."""
    return np.minimum.accumulate(seconds[::-1])[::-1]
