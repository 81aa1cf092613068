"""Predicts the time of an engine step; starts from a calibration and is corrected while serving.

A request that speculates asks draft and target anew in each round, while the target alone goes on by itself.
The time of a step includes this work of the server. If it counted for every step alike, speculation would
look as cheap as the target alone, and the target alone as slow as speculation.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from pipelines.speculation.draft_length.calibration import EngineCosts
from pipelines.speculation.draft_length.cost_filter import ATTENTION, OVERHEAD, SIZES, SPEED, CostFilter

_Rows = TypeVar("_Rows", float, npt.NDArray[np.float64])

# Weight of a new measurement of a first step: the memory is about fifty steps.
_UPDATE_SHARE = 0.02
_LARGEST_EXTRA = 0.5  # logarithm of the ratio of its extra time to the usual time
# Share of the calibrated increase per row that always remains: more rows must not look cheaper than fewer
# because one size was measured in a slow moment.
_LEAST_RISE = 0.1
_LARGEST_REDUCTION = 0.5  # of the smallest step, by less overhead than in the calibration
# Attention of a token in a chunk of 64, as a share of that of one of nine rows: 0.32 to 0.35 with 1 billion
# parameters.
_SHARE_OF_CHUNKS = 1 / 3
_ROWS_BESIDE_CHUNKS = 9


class StepCosts:
    """Time of an engine step: an increasing function of its rows, plus a time per position.

    A step reads the keys and values of each request's context, so the time also grows with the number of
    positions that it reads. Rows of a request share a part of that reading. Each step teaches how the machine
    differs from the calibration (``cost_filter``).

    Args:
        rows: Measured numbers of rows, ascending, at least two.
        seconds: Time of a step with each number of rows and no context.
        seconds_per_position: Extra time per position.
        reread_share: Share of the context's reading that each further row of a request repeats: 0 if the rows
            read it once together, 1 if each reads it alone.
        is_estimate: Whether other programs disturbed the measurement. What is learned from steps may then
            differ from it more.

    Attributes:
        seconds_per_position: Current extra time per position.
        first_s: Extra time of the first of several consecutive steps, due to cold caches and to work that the
            other engine's step left over.
        overhead: What speculation costs outside of the engine. Times of steps are those without it.
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
        self._reread_share = reread_share
        self.first_s = 0.0
        self.overhead = SpeculationOverhead()
        self._sizes = tuple(rows)
        self._counts: npt.NDArray[np.float64] = np.arange(rows[-1] + 1, dtype=np.float64)
        self._calibrated: npt.NDArray[np.float64] = np.maximum.accumulate(np.array(seconds, np.float64))
        self._calibrated_per_position = seconds_per_position
        self._filter = CostFilter(rows, is_estimate=is_estimate)
        self._update()

    def _update(self) -> None:
        """Apply the state of the filter to the calibration."""
        state = self._filter.state
        speed = math.exp(state[SPEED])
        least = _LEAST_RISE * self._calibrated
        rising = np.maximum.accumulate(self._calibrated * np.exp(state[SIZES:]) - least) + least
        state[SIZES:] = np.log(rising / self._calibrated)
        self.seconds_per_position = self._calibrated_per_position * speed * math.exp(state[ATTENTION])
        self._by_rows: npt.NDArray[np.float64] = speed * np.interp(self._counts, self._sizes, rising)
        self._slope = speed * float(rising[-1] - rising[-2]) / (self._sizes[-1] - self._sizes[-2])
        least_s = -_LARGEST_REDUCTION * float(self._by_rows[1])
        self._added_s = max(speed * float(state[OVERHEAD] * self._calibrated[0]), least_s)

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
        more = min(seconds - usual, usual * math.exp(_LARGEST_EXTRA) + 2 * self.first_s)
        self.first_s = max(self.first_s + _UPDATE_SHARE * (more - self.first_s), 0.0)

    def observe(self, rows: int, positions: float, seconds: float, num_steps: int = 1) -> None:
        """Learn from steps that took this long each."""
        slopes, expected_s = self._slopes(rows, positions)
        self._filter.observe(slopes, math.log(seconds / expected_s), num_steps)
        self._update()

    def deviation(self, rows: int, num_requests: int, context_len: float) -> float:
        """Return how uncertain it is by which factor more rows make a step slower.

        Args:
            rows: A number of rows.
            num_requests: Requests in the step; the other step has a row for each.
            context_len: Mean context length of the requests.

        Returns:
            Standard deviation of the logarithm of the ratio of both times.
        """
        several, _ = self._slopes(rows, self.positions(rows, context_len, num_requests))
        single, _ = self._slopes(num_requests, self.positions(num_requests, context_len, num_requests))
        return self._filter.deviation(several - single)

    def _slopes(self, rows: int, positions: float) -> tuple[npt.NDArray[np.float64], float]:
        """Return the derivatives of the logarithm of a step's time by the filter's state, and the time."""
        slopes = np.zeros(len(self._filter.state))
        total_s = float(self.seconds(rows, positions))
        attention_s = positions * self.seconds_per_position
        upper = min(max(bisect_left(self._sizes, rows), 1), len(self._sizes) - 1)
        smaller, larger = self._sizes[upper - 1 : upper + 1]
        share = min(max((rows - smaller) / (larger - smaller), 0.0), 1.0)
        smaller_s = (1 - share) * float(self._by_rows[smaller])
        larger_s = total_s - self._added_s - attention_s - smaller_s
        slopes[SPEED] = 1.0
        slopes[OVERHEAD] = math.exp(self._filter.state[SPEED]) * float(self._calibrated[0]) / total_s
        slopes[ATTENTION] = attention_s / total_s
        slopes[SIZES + upper - 1] = smaller_s / total_s
        slopes[SIZES + upper] = larger_s / total_s
        return slopes, total_s


Kind = Literal["alone", "adapted", "fixed"]
"""Whether the requests of a step get no drafts, drafts whose length the server adapts, or others."""

_OVERHEAD_UPDATE_SHARE = 0.05
_LARGEST_RATIO = 3.0  # a moment without CPU must not count as many steps
# Share of the difference that each step without speculation forgets: while there is none, an estimate
# that is too high could not correct itself.
_FORGOTTEN_SHARE = 0.001


class SpeculationOverhead:
    """Time that a request takes outside of the engine in steps with speculation and in others.

    A part of that time belongs to the step, however many requests it has. So each class of loads has means of
    its own.

    Attributes:
        num_adapted: Requests that speculate now with draft lengths that the server adapts; 0 while it drafts
            for none.
    """

    def __init__(self) -> None:
        self.num_adapted = 0
        self._means: defaultdict[tuple[int, Kind], _Mean] = defaultdict(_Mean)

    def extra_s(self, num_requests: int, kind: Kind = "adapted") -> float:
        """Return how much longer a step takes because its requests speculate; 0 until that is known."""
        load = load_class(num_requests)
        speculating, alone = self._means[load, kind], self._means[load, "alone"]
        if not (speculating.count and alone.count):
            return 0.0
        return num_requests * max(speculating.seconds - alone.seconds, 0.0)

    def observe(self, num_requests: int, seconds: float, kind: Kind) -> None:
        """Learn from a step.

        Args:
            num_requests: Requests in the step.
            seconds: Its time outside of the engine, including the work that followed it.
            kind: Whether all of its requests speculate.
        """
        load = load_class(num_requests)
        mean = self._means[load, kind]
        mean.add(seconds / num_requests)
        if kind == "alone":
            for other in (self._means[load, "adapted"], self._means[load, "fixed"]):
                other.seconds -= _FORGOTTEN_SHARE * (other.seconds - mean.seconds)


class _Mean:
    """A mean of the latest values; at first of all."""

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        if self.count > 1:
            seconds = min(seconds, _LARGEST_RATIO * self.seconds)
        self.seconds += max(_OVERHEAD_UPDATE_SHARE, 1 / self.count) * (seconds - self.seconds)


def load_class(num_requests: int) -> int:
    """Return the class of a load: one request, two, three to five, six to ten, eleven to 21, and so on.

    Usual numbers of requests are powers of two. From four on they lie inside of their classes, so that a
    request that ends before the next one begins changes nothing.
    """
    return (3 * num_requests // 2).bit_length()
