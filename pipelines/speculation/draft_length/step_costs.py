"""Predicts the time of an engine step; starts from a calibration and is corrected while serving."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from pipelines.speculation.draft_length.calibration import EngineCosts
from pipelines.speculation.draft_length.verification_overhead import VerificationOverhead

_Rows = TypeVar("_Rows", float, npt.NDArray[np.float64])

# Weight of a new measurement. A shared machine slows down and recovers within seconds and a step takes about
# 20 ms, so the memory is about fifty steps.
_UPDATE_SHARE = 0.02
# Share of an error that is attributed to overhead of every step.
_ADDED_SHARE = 0.5
# An outlier, such as a moment without CPU, must not count as much as ten steps.
_LARGEST_ERROR = 0.5
# Share of the calibrated increase per row that always remains. A slow moment affects the size that was being
# computed more than the others; without this, more rows could look cheaper than fewer.
_LEAST_RISE = 0.5
# The same if the increase was estimated on a busy machine: it may be several times too steep.
_LEAST_ESTIMATED_RISE = 0.1
# Attention of a token in a chunk of 64, as a share of that of one of nine rows: 0.32 to 0.35 with 1 billion
# parameters.
_SHARE_OF_CHUNKS = 1 / 3
_ROWS_BESIDE_CHUNKS = 9


class StepCosts:
    """Time of an engine step: a piecewise linear, increasing function of its rows, plus a time per position.

    A step reads the keys and values of each request's context, so the time also grows with the number of
    positions that it reads. Rows of a request share a part of that reading.

    Args:
        rows: Measured numbers of rows, ascending, at least two.
        seconds: Time of a step with each number of rows and no context.
        seconds_per_position: Extra time per position.
        reread_share: Share of the context's reading that each further row of a request repeats: 0 if the rows
            read it once together, 1 if each reads it alone.
        is_estimate: Whether other programs disturbed the measurement. What is learned from steps may then
            differ from it more.

    Attributes:
        first_s: Extra time of the first of several consecutive steps, due to cold caches and to work that the
            other engine's step left over.
        overhead: What verifying costs outside of the engine. Times of steps are those without it.
    """

    def __init__(
        self,
        rows: Sequence[int],
        seconds: Sequence[float],
        seconds_per_position: float = 0.0,
        reread_share: float = 1.0,
        *,
        is_estimate: bool = False,
    ) -> None:
        self._least_rise = _LEAST_ESTIMATED_RISE if is_estimate else _LEAST_RISE
        self.seconds_per_position = seconds_per_position
        self._reread_share = reread_share
        self.first_s = 0.0
        self.overhead = VerificationOverhead()
        self._counts: npt.NDArray[np.float64] = np.arange(rows[-1] + 1, dtype=np.float64)
        rising = np.maximum.accumulate(np.array(seconds, np.float64))
        self._by_rows: npt.NDArray[np.float64] = np.interp(self._counts, rows, rising)
        self._added_s = 0.0  # overhead of every step
        self._slope = float((rising[-1] - rising[-2]) / (rows[-1] - rows[-2]))
        self._calibrated = self._by_rows.copy()

    @classmethod
    def of(cls, measured: EngineCosts, *, is_estimate: bool) -> StepCosts:
        """Return the model of a calibrated engine."""
        return cls(
            measured.rows,
            measured.seconds,
            measured.seconds_per_position,
            measured.reread_share,
            is_estimate=is_estimate,
        )

    @property
    def max_rows(self) -> int:
        """Largest measured number of rows."""
        return len(self._by_rows) - 1

    def seconds(self, rows: npt.ArrayLike, positions: npt.ArrayLike = 0.0) -> npt.NDArray[np.float64]:
        """Predict the time of steps; extrapolates linearly beyond the last measurement.

        Args:
            rows: Numbers of rows, any shape.
            positions: See the method of this name; same shape.

        Returns:
            Seconds, float64, same shape.
        """
        counts = np.asarray(rows)
        inside = np.minimum(counts, self.max_rows)
        beyond = (counts - inside) * self._slope
        times: npt.NDArray[np.float64] = (
            self._added_s + self._by_rows[inside] + beyond + np.asarray(positions) * self.seconds_per_position
        )
        return times

    def positions(self, rows: _Rows, context_len: float, num_requests: int = 1) -> _Rows:
        """Return how many positions steps read.

        Args:
            rows: A number of rows or float64 of any shape, at least one row for each request.
            context_len: Mean context length of the requests.
            num_requests: Requests in each step.
        """
        return context_len * (num_requests + self._reread_share * (rows - num_requests))

    def row_context_s(self, context_len: float) -> float:
        """Return what reading its context costs for a further row of a request."""
        return self.seconds_per_position * self._reread_share * context_len

    def reading_s(self, start: int, stop: int) -> float:
        """Estimate the time to read the positions from ``start`` to ``stop`` of a prompt.

        A token of a chunk costs as much as one more row, except for the attention, which chunks share.
        """
        tokens = max(stop - start, 0)
        positions = tokens * (start + stop) / 2
        row_s = float(self._by_rows[-1] - self._by_rows[1]) / max(self.max_rows - 1, 1)
        read_by_row = self.positions(_ROWS_BESIDE_CHUNKS, positions) / _ROWS_BESIDE_CHUNKS
        return tokens * row_s + _SHARE_OF_CHUNKS * read_by_row * self.seconds_per_position

    def observe_first(self, rows: int, positions: float, seconds: float) -> None:
        """Learn from the first of several consecutive steps."""
        usual = float(self.seconds(rows, positions))
        more = min(seconds - usual, usual * math.exp(_LARGEST_ERROR) + 2 * self.first_s)
        self.first_s = max(self.first_s + _UPDATE_SHARE * (more - self.first_s), 0.0)

    def observe(self, rows: int, positions: float, seconds: float, num_steps: int = 1) -> None:
        """Learn from steps that took this long each.

        Extra time is divided between two causes that a single step cannot distinguish: a slower machine,
        perhaps only at this size, which makes rows more expensive, and overhead of every step, such as
        sending answers.
        """
        expected_s = float(self.seconds(rows, positions))
        error = min(max(math.log(seconds / expected_s), -_LARGEST_ERROR), _LARGEST_ERROR)
        change_s = (1 - (1 - _UPDATE_SHARE) ** num_steps) * error * expected_s
        # At most the time of the smallest step: otherwise the cost of rows could fall to 0.
        added_s = min(max(self._added_s + _ADDED_SHARE * change_s, 0.0), float(self._by_rows[1]))
        slowdown = (change_s - (added_s - self._added_s)) / (expected_s - self._added_s)
        self._added_s = added_s
        counts = np.maximum(self._counts, 1)
        nearness = np.minimum(counts / rows, rows / counts)
        self._by_rows *= np.exp(slowdown * (0.5 + 0.5 * nearness))
        if rows <= self.max_rows:
            relative = self._calibrated / self._calibrated[rows]
            flattest = self._by_rows[rows] * (1 + self._least_rise * (relative - 1))
            self._by_rows[:rows] = np.minimum(self._by_rows[:rows], flattest[:rows])
            self._by_rows[rows:] = np.maximum(self._by_rows[rows:], flattest[rows:])
        self.seconds_per_position *= math.exp(slowdown)
        self._slope *= math.exp(slowdown)
