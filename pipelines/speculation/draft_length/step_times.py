"""Predicts how long a step of an engine takes, by its rows.

The table begins with what a few steps took at start (``Executor.warm_up``), and every step corrects it. A
number of rows that is in use follows its own steps. The others follow the machine, which other programs or a
longer context may slow down, and lie between the times of fewer and of more rows that are in use.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_NEW_SHARE = 0.2  # of a new step in the time of its number of rows: about five steps are remembered
_LARGEST_CHANGE = 0.7  # of the logarithm by one step, so that a moment without a core does not count as many
_TRUST = 0.3  # of a step, in the weight of its number of rows against the machine
_FORGOTTEN = 0.005  # of that weight with each step of another number of rows
_MOST_ROWS = 128  # more are extrapolated


class StepTimes:
    """The time of an engine's step.

    Args:
        rows: Numbers of rows that were timed, ascending, at least two.
        seconds: Time of a step of each. Those between are interpolated, those beyond extrapolated.
    """

    def __init__(self, rows: Sequence[int], seconds: Sequence[float]) -> None:
        counts = np.arange(1, _MOST_ROWS + 1)
        slope = max((seconds[-1] - seconds[-2]) / (rows[-1] - rows[-2]), 0.0)
        self._timed = np.interp(counts, rows, seconds) + slope * np.maximum(counts - rows[-1], 0)
        self._own = np.zeros(_MOST_ROWS)  # logarithm of the ratio of a step's time to the timed one
        self._weight = np.zeros(_MOST_ROWS)
        self._seconds = self._timed

    def seconds(self, rows: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return the time of steps with these numbers of rows, at least 1; float64 of the same shape."""
        counts = np.asarray(rows)
        times = self._seconds[np.minimum(counts, _MOST_ROWS) - 1]
        return np.asarray(times * np.maximum(counts / _MOST_ROWS, 1))

    def observe(self, rows: int, seconds: float) -> None:
        """Learn from a step."""
        index = min(rows, _MOST_ROWS) - 1
        ratio = math.log(seconds / self._timed[index])
        if self._weight[index] < _TRUST / 2:
            self._own[index] = ratio
        else:
            change = min(max(ratio - self._own[index], -_LARGEST_CHANGE), _LARGEST_CHANGE)
            self._own[index] += _NEW_SHARE * change
        self._weight *= 1 - _FORGOTTEN
        self._weight[index] += _TRUST * (1 - self._weight[index])
        in_use = self._weight >= _TRUST / 2
        machine = float(np.median(self._own[in_use]))
        own = self._timed * np.exp(machine + self._weight * (self._own - machine))
        least = np.maximum.accumulate(np.where(in_use, own, 0.0))
        most = np.minimum.accumulate(np.where(in_use, own, np.inf)[::-1])[::-1]
        self._seconds = np.where(
            in_use, own, np.clip(self._timed * math.exp(machine), least, np.maximum(least, most))
        )
