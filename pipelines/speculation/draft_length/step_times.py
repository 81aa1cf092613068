"""Predicts how long a step of an engine takes, by its rows.

The table begins with what a few steps took at start (``Executor.warm_up``), and every step corrects it: the
times of all numbers of rows by a tenth of its error, because other programs or a longer context slow them all
down, and that of its own by the mean error of its latest steps, because one step tells little. A number of
rows that is not in use is taken to have been timed as wrongly as its neighbours in use: otherwise what nobody
has tried would look cheap, or would never be tried again after one slow step. Of two in use, the greater is
taken to be no faster, and the others lie between their neighbours in use.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pipelines.speculation.draft_length.acceptance import FORGOTTEN

_MACHINE_SHARE = 0.1  # of an error that changes all times
_MEMORY = 50  # steps of a number of rows, whose mean error changes its own time
_LARGEST_ERROR = 0.7  # of a logarithm, so that a moment without a core does not count as many
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
        beyond_s = slope * np.maximum(counts - rows[-1], 0)
        self._timed = np.interp(counts, rows, np.maximum.accumulate(seconds)) + beyond_s
        self._own = np.zeros(_MOST_ROWS)  # logarithms of factors
        self._machine = 0.0
        self._count = np.zeros(_MOST_ROWS)  # steps of which ``_own`` is the mean error
        # Steps since the last one. A number is in use until most of its own error is forgotten.
        self._age = np.where(np.isin(counts, rows), 1 / FORGOTTEN, math.inf)
        self._seconds: list[float] = self._timed.tolist()

    def seconds(self, rows: int) -> float:
        """Return the time of a step with a number of rows, at least 1."""
        if rows > _MOST_ROWS:
            return self._seconds[-1] * rows / _MOST_ROWS
        return self._seconds[rows - 1]

    def observe(self, rows: int, seconds: float) -> None:
        """Learn from a step."""
        index = min(rows, _MOST_ROWS) - 1
        if math.isinf(self._age[index]):  # an engine prepares a number of rows at its first step
            self._age[index] = 1 / FORGOTTEN
            return
        seconds /= max(rows / _MOST_ROWS, 1)
        error = math.log(seconds / self._timed[index]) - self._machine - self._own[index]
        bounded = min(max(error, -_LARGEST_ERROR), _LARGEST_ERROR)
        self._own *= 1 - FORGOTTEN
        if self._age[index] >= 1 / FORGOTTEN:  # what was timed counts as a step, unless it was wrong
            self._count[index] = 1 if abs(error) > _LARGEST_ERROR else 2
            self._own[index] += error / self._count[index]
        else:
            self._count[index] = min(self._count[index] + 1, _MEMORY)
            self._own[index] += bounded / self._count[index]
            self._machine += _MACHINE_SHARE * bounded
        self._age += 1
        self._age[index] = 0
        self._predict()

    def follow(self, other: StepTimes) -> None:
        """Expect, after a round without a step, a little more to be as much slower as another engine is.

        What slowed this one down may be over, and nobody would ever know.
        """
        self._own *= 1 - FORGOTTEN
        self._machine += FORGOTTEN * (other._machine - self._machine)
        self._predict()

    def _predict(self) -> None:
        rows = np.arange(_MOST_ROWS)
        in_use = self._age < 1 / FORGOTTEN
        own = np.interp(rows, rows[in_use], self._own[in_use]) if in_use.any() else 0.0
        times = self._timed * np.exp(self._machine + own)
        most = np.minimum.accumulate(np.where(in_use, times, np.inf)[::-1])[::-1]
        least = np.maximum.accumulate(np.where(in_use, most, 0.0))
        self._seconds = np.clip(times, least, most).tolist()
