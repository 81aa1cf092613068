"""What an engine step costs, by the rows in it: seeded by a calibration, corrected while serving."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

# Share of a new measurement in the estimate. A shared machine slows down and recovers within seconds, a
# step takes some 20 ms: about fifty steps of memory.
_UPDATE_SHARE = 0.02


class StepCosts:
    """Seconds of one engine step as a piecewise linear function of its rows, never decreasing.

    Args:
        rows: Numbers of rows that were measured, ascending, at least two.
        seconds: Median time of a step with so many.
    """

    def __init__(self, rows: Sequence[int], seconds: Sequence[float]) -> None:
        self._rows: npt.NDArray[np.float64] = np.array(rows, np.float64)
        self._seconds: npt.NDArray[np.float64] = np.array(seconds, np.float64)

    def seconds(self, rows: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Time of a step; beyond the last measurement it grows on as between the last two.

        Args:
            rows: Any shape.

        Returns:
            float64, seconds, in the shape of ``rows``.
        """
        counts = np.asarray(rows, np.float64)
        rising = np.maximum.accumulate(self._seconds)
        beyond = np.maximum(counts - self._rows[-1], 0)
        slope = (rising[-1] - rising[-2]) / (self._rows[-1] - self._rows[-2])
        times: npt.NDArray[np.float64] = np.interp(counts, self._rows, rising) + beyond * slope
        return times

    def seconds_per_row(self, rows: int) -> float:
        """What one row more costs a step of ``rows``, as the mean over the next four."""
        here, there = self.seconds([rows, rows + 4])
        return float(there - here) / 4

    def observe(self, rows: int, seconds: float) -> None:
        """Learn from a step: the machine may be slower now, or slower at this size than at others."""
        error = np.log(seconds / float(self.seconds(rows)))
        # An outlier (the machine was taken away for a moment) must not count as ten steps.
        error = float(np.clip(error, -0.5, 0.5))
        nearness = np.exp(-np.abs(np.log(self._rows / max(rows, 1))))
        self._seconds *= np.exp(_UPDATE_SHARE * error * (0.5 + 0.5 * nearness))
