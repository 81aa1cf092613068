"""What an engine step costs, by what is in it: seeded by a calibration, corrected while serving."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

# Share of a new measurement in the estimate. A shared machine slows down and recovers within seconds, a
# step takes some 20 ms: about fifty steps of memory.
_UPDATE_SHARE = 0.02
# Share of an error that is taken for a time that every step has added.
_ADDED_SHARE = 0.5
# An outlier (the machine was taken away for a moment) must not count as ten steps.
_LARGEST_ERROR = 0.5
# Share of the calibrated rise from row to row, as a ratio, that stays whatever is observed. A slow moment
# counts for the size that it met more than for the others; without this it could make more rows look
# cheaper than fewer.
_LEAST_RISE = 0.5


class StepCosts:
    """Seconds of one engine step: a piecewise linear, rising function of its rows, and a share per position.

    Each row reads the keys and values of its context, so a step also costs in proportion to its positions:
    the sum of its rows' context lengths.

    Args:
        rows: Numbers of rows that were measured, ascending, at least two.
        seconds: Time of a step with so many and no context.
        seconds_per_position: What each position adds.

    Attributes:
        first_s: What the first of several steps in a row costs more than the others: what another engine
            left behind in the caches, and what its step gave to do.
    """

    def __init__(
        self, rows: Sequence[int], seconds: Sequence[float], seconds_per_position: float = 0.0
    ) -> None:
        self.seconds_per_position = seconds_per_position
        self.first_s = 0.0
        self._counts: npt.NDArray[np.float64] = np.arange(rows[-1] + 1, dtype=np.float64)
        rising = np.maximum.accumulate(np.array(seconds, np.float64))
        self._by_rows: npt.NDArray[np.float64] = np.interp(self._counts, rows, rising)
        self._added_s = 0.0  # to every step, whatever is in it
        self._slope = float((rising[-1] - rising[-2]) / (rows[-1] - rows[-2]))
        self._calibrated = self._by_rows.copy()

    @property
    def max_rows(self) -> int:
        """The largest step that was measured."""
        return len(self._by_rows) - 1

    def seconds(self, rows: npt.ArrayLike, positions: npt.ArrayLike = 0.0) -> npt.NDArray[np.float64]:
        """Time of a step; beyond the last measurement it grows on as between the last two.

        Args:
            rows: Whole numbers, any shape.
            positions: Sum of the rows' context lengths, of the same shape.

        Returns:
            float64, seconds, in that shape.
        """
        counts = np.asarray(rows)
        inside = np.minimum(counts, self.max_rows)
        beyond = (counts - inside) * self._slope
        times: npt.NDArray[np.float64] = (
            self._added_s + self._by_rows[inside] + beyond + np.asarray(positions) * self.seconds_per_position
        )
        return times

    def observe_first(self, rows: int, positions: int, seconds: float) -> None:
        """Learn from the first of several steps in a row."""
        usual = float(self.seconds(rows, positions))
        more = min(seconds - usual, usual * math.exp(_LARGEST_ERROR) + 2 * self.first_s)
        self.first_s = max(self.first_s + _UPDATE_SHARE * (more - self.first_s), 0.0)

    def observe(self, rows: int, positions: int, seconds: float) -> None:
        """Learn from a step.

        What it took longer is shared between two causes that one step cannot tell apart: a slower machine,
        perhaps only at this size, which makes rows dearer, and what every step has to bear beside its rows,
        such as the answers that are sent meanwhile.
        """
        expected_s = float(self.seconds(rows, positions))
        error = min(max(math.log(seconds / expected_s), -_LARGEST_ERROR), _LARGEST_ERROR)
        change_s = _UPDATE_SHARE * error * expected_s
        # At most as long as the smallest step: else rows, whose times follow what is left, could come to cost
        # nothing.
        added_s = min(max(self._added_s + _ADDED_SHARE * change_s, 0.0), float(self._by_rows[1]))
        slowdown = (change_s - (added_s - self._added_s)) / (expected_s - self._added_s)
        self._added_s = added_s
        counts = np.maximum(self._counts, 1)
        nearness = np.minimum(counts / rows, rows / counts)
        self._by_rows *= np.exp(slowdown * (0.5 + 0.5 * nearness))
        if rows <= self.max_rows:
            relative = self._calibrated / self._calibrated[rows]
            flattest = self._by_rows[rows] * (1 + _LEAST_RISE * (relative - 1))
            self._by_rows[:rows] = np.minimum(self._by_rows[:rows], flattest[:rows])
            self._by_rows[rows:] = np.maximum(self._by_rows[rows:], flattest[rows:])
        self.seconds_per_position *= math.exp(slowdown)
        self._slope *= math.exp(slowdown)
