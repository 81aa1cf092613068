"""Measures of a *regression*: how much worse the candidate is than a baseline, 0 if it is equal.

Every measure gives evidence that the regression lies above or below a limit; ``sequences`` computes bounds
and sample sizes from it. A trial is a pair of one request of the candidate and one of the baseline.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from pipelines.canary.judge import bets, counts
from pipelines.canary.judge.counts import FloatArray, Side

BoolArray = npt.NDArray[np.bool_]
Own = TypeVar("Own")
Compared = TypeVar("Compared", bound="TwoArms")


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

    def log_evidence(self, side: Side, regression: float, growth: float = 1.0) -> float:
        """Compute the log evidence that the true regression lies above or below ``regression``.

        If it does not, the evidence ever exceeds log(1 / alpha) with probability alpha at most. Evidence for
        "above" never rises with ``regression``, evidence for "below" never falls.

        Args:
            side: "above" or "below".
            regression: Value within ``regression_range``.
            growth: Factor by which to imagine the sample larger, with the same shares.
        """

    def first(self: Own, num: int) -> Own:
        """Return the measure of the first ``num`` trials."""


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

    def log_evidence(self, side: Side, regression: float, growth: float = 1.0) -> float:
        """Compute the evidence from the number of events (``counts``)."""
        seen = self.events if side == "above" else self.suspects
        return float(counts.log_evidence(side, growth * seen.sum(), growth * self.num, regression))

    def first(self, num: int) -> Rate:
        """Return the measure of the first ``num`` trials."""
        return Rate(self.events[:num], self.suspects[:num])


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

    def first(self: Compared, num: int) -> Compared:
        """Return the measure of the first ``num`` pairs."""
        return replace(self, candidate=self.candidate[:num], baseline=self.baseline[:num])


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

    def log_evidence(self, side: Side, regression: float, growth: float = 1.0) -> float:
        """Compute the evidence from bets on the difference, which is at least -1."""
        excess = self._differences - regression
        if side == "above":
            return bets.log_evidence(excess, 1 + regression, growth)
        return bets.log_evidence(-excess, 1 - regression, growth)


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

    def log_evidence(self, side: Side, regression: float, growth: float = 1.0) -> float:
        """Compute the evidence from bets on x - r y, which lies between -r and 1."""
        ratio = 1 + self.sign * regression
        excess = self.candidate - ratio * self.baseline
        if (side == "above") == (self.sign == 1):
            return bets.log_evidence(excess, ratio, growth)
        return bets.log_evidence(-excess, 1.0, growth)


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

    def log_evidence(self, side: Side, regression: float, growth: float = 1.0) -> float:
        """Compute the evidence from the number of pairs beyond it, which is half of them for the median."""
        limits = (1 + regression) * self.baseline
        is_beyond = self.candidate > limits if side == "above" else self.candidate < limits
        return float(counts.log_evidence("above", growth * is_beyond.sum(), growth * self.num, 0.5))
