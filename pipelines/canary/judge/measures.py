"""Measures of a *regression*: how much worse the candidate is than a baseline, 0 if it is equal.

Every measure gives evidence that the regression lies above or below a limit. ``bounds`` that hold at any time
are computed from it. A trial is a pair of one request of the candidate and one of the baseline.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from pipelines.canary.judge.e_values import FloatArray, Side, mean_evidence, rate_evidence

BoolArray = npt.NDArray[np.bool_]

_EDGE = 1e-9  # relative distance from the ends of the range, which are not tested
_STEPS = 40


class Measure(Protocol):
    """A regression and its observations."""

    @property
    def num(self) -> int:
        """Number of trials."""

    @property
    def regression_range(self) -> tuple[float, float]:
        """Smallest and largest possible regression."""

    @property
    def estimate(self) -> float | None:
        """Observed regression; None without data."""

    def log_evidence(self, side: Side, regression: float) -> float:
        """Compute the log evidence that the true regression lies above or below ``regression``.

        If it does not, the evidence ever exceeds log(1 / alpha) with probability alpha at most. Evidence for
        "above" never rises with ``regression``, evidence for "below" never falls.

        Args:
            side: "above" or "below".
            regression: Value within ``regression_range``.
        """


@dataclass(frozen=True)
class Rate:
    """Share of trials with an event.

    Attributes:
        events: bool [n], whether the event certainly happened.
        suspects: bool [n], whether the event may have happened; counted to show that the rate is low.
    """

    events: BoolArray
    suspects: BoolArray

    @property
    def num(self) -> int:
        """Number of trials."""
        return len(self.events)

    @property
    def regression_range(self) -> tuple[float, float]:
        """A rate lies between 0 and 1."""
        return 0.0, 1.0

    @property
    def estimate(self) -> float | None:
        """Share of trials with a suspected event."""
        return float(self.suspects.mean()) if self.num else None

    def log_evidence(self, side: Side, regression: float) -> float:
        """Compute the evidence from the number of events (``e_values``)."""
        seen = self.events if side == "above" else self.suspects
        return float(rate_evidence(side, seen.sum(), self.num, regression))


@dataclass(frozen=True)
class TwoArms:
    """Values of two arms, one of each per pair.

    Attributes:
        candidate: [n], values of the candidate.
        baseline: [n], values of the baseline.
    """

    candidate: FloatArray
    baseline: FloatArray

    @property
    def num(self) -> int:
        """Number of pairs."""
        return len(self.candidate)


@dataclass(frozen=True)
class RatioOfTimes(TwoArms):
    """A ratio of the times of both arms, less 1.

    Attributes:
        candidate: [n], at least 0, inf for requests without an answer.
        baseline: [n], likewise.
    """

    @property
    def regression_range(self) -> tuple[float, float]:
        """Range for ratios from 0 to 10."""
        return -1.0, 9.0


@dataclass(frozen=True)
class MeanDifference(TwoArms):
    """Difference of the means of values in [0, 1], such as shares.

    Attributes:
        sign: 1 if larger values are worse, -1 if smaller values are.
    """

    sign: Literal[1, -1] = 1

    @property
    def regression_range(self) -> tuple[float, float]:
        """Range for differences of shares."""
        return -1.0, 1.0

    @property
    def estimate(self) -> float | None:
        """Difference of the means."""
        return float(self._differences.mean()) if self.num else None

    @property
    def _differences(self) -> FloatArray:
        return self.sign * (self.candidate - self.baseline)

    def log_evidence(self, side: Side, regression: float) -> float:
        """Compute the evidence from bets on the difference, which is at least -1."""
        excess = self._differences - regression
        if side == "above":
            return mean_evidence(excess, 1 + regression)
        return mean_evidence(-excess, 1 - regression)


@dataclass(frozen=True)
class MeanRatio(TwoArms):
    """Ratio of the means of values in [0, 1]; the regression is relative.

    The ratio of the means is r if the mean of the differences x - r y is 0.

    Attributes:
        sign: 1 if larger values are worse and the ratio is 1 + regression; -1 if smaller values are worse and
            it is 1 - regression.
    """

    sign: Literal[1, -1]

    @property
    def regression_range(self) -> tuple[float, float]:
        """Range for ratios from 0 to 10."""
        return (-1.0, 9.0) if self.sign == 1 else (-9.0, 1.0)

    @property
    def estimate(self) -> float | None:
        """Regression by the ratio of the means."""
        if not self.num or not self.baseline.any():
            return None
        return float(self.sign * (self.candidate.mean() / self.baseline.mean() - 1))

    def log_evidence(self, side: Side, regression: float) -> float:
        """Compute the evidence from bets on x - r y, which lies between -r and 1."""
        ratio = 1 + self.sign * regression
        excess = self.candidate - ratio * self.baseline
        if (side == "above") == (self.sign == 1):
            return mean_evidence(excess, ratio)
        return mean_evidence(-excess, 1.0)


@dataclass(frozen=True)
class MedianRatio(RatioOfTimes):
    """Median of the ratios of pairs, less 1.

    It needs neither a unit nor a bound of the times, and failed requests can count as infinitely slow.
    """

    @property
    def estimate(self) -> float | None:
        """Median of the ratios that exist, less 1."""
        known = (self.baseline > 0) & (np.isfinite(self.candidate) | np.isfinite(self.baseline))
        if not known.any():
            return None
        return float(np.median(self.candidate[known] / self.baseline[known])) - 1

    def log_evidence(self, side: Side, regression: float) -> float:
        """Compute the evidence from the number of pairs beyond it, which is half of them for the median."""
        limits = (1 + regression) * self.baseline
        is_beyond = self.candidate > limits if side == "above" else self.candidate < limits
        return float(rate_evidence("above", is_beyond.sum(), self.num, 0.5))


@dataclass(frozen=True)
class QuantileRatio(RatioOfTimes):
    """Ratio of a quantile of the candidate to that of the baseline, less 1; values need not be paired.

    The share of values up to a quantile is known, so evidence about a rate (``e_values``) is evidence about
    the quantile: if too few values are at most z, the quantile lies above z. If the candidate's quantile were
    at most (1 + regression) times the baseline's, there would be some z with the baseline's quantile at or
    above z and the candidate's at or below (1 + regression) z. The evidence against one z is the mean of both
    arms' evidence and its product; the evidence against all z is the least of these.

    Source: Howard and Ramdas 2022, "Sequential estimation of quantiles with applications to A/B testing and
    best-arm identification", Bernoulli 28, arXiv 1906.09712 (confidence sequences for a fixed quantile by
    inverting those of its rate; two-sample tests as the least over the common quantile).

    Attributes:
        quantile: Quantile between 0 and 1.
    """

    quantile: float

    @property
    def estimate(self) -> float | None:
        """Ratio of the nearest-rank quantiles, less 1."""
        if not self.num:
            return None
        ours, theirs = (nearest_rank(values, self.quantile) for values in (self.candidate, self.baseline))
        return ours / theirs - 1 if math.isfinite(theirs) else None

    def log_evidence(self, side: Side, regression: float) -> float:
        """Compute the least evidence over all values that the quantiles might have."""
        scaled = np.sort((1 + regression) * self.baseline)
        candidate = np.sort(self.candidate)
        high, low = (candidate, scaled) if side == "above" else (scaled, candidate)
        return _log_evidence_apart(low, high, self.quantile)


def _log_evidence_apart(low: FloatArray, high: FloatArray, quantile: float) -> float:
    """Compute the log evidence that the quantile of ``high`` lies above that of ``low``; both are sorted."""
    # Both counts change only at values of the samples, so the minimum is there.
    places = np.concatenate(([-np.inf], low, high))
    num_high = np.searchsorted(high, places, side="right")
    num_low = np.searchsorted(low, places, side="left")
    above = _table("below", len(high), quantile)[num_high]  # low counts show a higher quantile
    below = _table("above", len(low), quantile)[num_low]
    either = np.logaddexp.reduce((above, below, above + below)) - math.log(3)
    return float(np.min(either))


def _table(side: Side, num: int, rate: float) -> FloatArray:
    """Return the evidence for each count from 0 to ``num``: float64 [num + 1]."""
    return rate_evidence(side, np.arange(num + 1), num, rate)


def nearest_rank(values: FloatArray, quantile: float) -> float:
    """Return the nearest-rank quantile of values."""
    return float(np.sort(values)[max(0, math.ceil(quantile * len(values)) - 1)])


@dataclass(frozen=True)
class Bounds:
    """A confidence sequence at one time.

    Attributes:
        num: Number of trials so far.
        estimate: Observed regression; None without data.
        low: Lower bound, which holds at all times together with the given confidence.
        high: Upper bound, which holds at all times together with the given confidence.
    """

    num: int
    estimate: float | None
    low: float
    high: float


def bounds(measure: Measure, confidence: float) -> Bounds:
    """Compute the bounds of a regression; each holds at all times together with ``confidence``."""
    least, most = measure.regression_range
    if not measure.num:
        return Bounds(0, None, least, most)
    needed = -math.log1p(-confidence)
    low = _last(lambda regression: measure.log_evidence("above", regression) >= needed, least, most)
    high = _last(lambda regression: measure.log_evidence("below", regression) >= needed, most, least)
    return Bounds(measure.num, measure.estimate, low, high)


def _last(is_so: Callable[[float], bool], start: float, end: float) -> float:
    """Find by bisection where a property that holds near ``start`` ceases to hold; ``start`` if never."""
    edge = _EDGE * (end - start)
    inside, outside = start + edge, end - edge
    if not is_so(inside):
        return start
    if is_so(outside):
        return end
    for _ in range(_STEPS):
        middle = (inside + outside) / 2
        if is_so(middle):
            inside = middle
        else:
            outside = middle
    return inside
