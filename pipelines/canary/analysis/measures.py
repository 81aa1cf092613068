"""What can be measured of a candidate beside a baseline, each as a *loss*: how much worse, 0 if nothing.

Every measure gives evidence that its loss lies above or below a limit; ``sequences`` makes bounds and sample
sizes of that. Pairs are the trials: one request of the candidate and one of the baseline.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from pipelines.canary.analysis import bets, counts
from pipelines.canary.analysis.counts import FloatArray, Side

BoolArray = npt.NDArray[np.bool_]
Own = TypeVar("Own")
Compared = TypeVar("Compared", bound="TwoArms")


class Measure(Protocol):
    """One loss, and what was seen of it."""

    @property
    def num(self) -> int:
        """Trials."""

    @property
    def losses(self) -> tuple[float, float]:
        """Between which bounds are looked for."""

    @property
    def estimate(self) -> float | None:
        """The loss that was seen; None without data."""

    def log_evidence(self, side: Side, loss: float, growth: float = 1.0) -> float:
        """Natural logarithm of the evidence that the loss is above, or below, ``loss``.

        It exceeds log(1 / alpha) at any time with probability alpha at most if that is not so. "above"
        never grows with ``loss``, "below" never falls.

        Args:
            side: Which.
            loss: Between ``losses``.
            growth: As if the sample were so many times as large, with the same shares.
        """

    def first(self: Own, num: int) -> Own:
        """What was known after ``num`` trials."""


@dataclass(frozen=True)
class Rate:
    """Share of trials with an event.

    Attributes:
        events: bool [n], whether it happened for certain.
        suspects: bool [n], whether it cannot be ruled out; counted where the rate is to be small.
    """

    events: BoolArray
    suspects: BoolArray

    @property
    def num(self) -> int:
        """Trials."""
        return len(self.events)

    @property
    def losses(self) -> tuple[float, float]:
        """Of a rate."""
        return 0.0, 1.0

    @property
    def estimate(self) -> float | None:
        """Share of suspects."""
        return float(self.suspects.mean()) if self.num else None

    def log_evidence(self, side: Side, loss: float, growth: float = 1.0) -> float:
        """By the count (``counts``)."""
        seen = self.events if side == "above" else self.suspects
        return float(counts.log_evidence(side, growth * seen.sum(), growth * self.num, loss))

    def first(self, num: int) -> Rate:
        """What was known after ``num`` trials."""
        return Rate(self.events[:num], self.suspects[:num])


@dataclass(frozen=True)
class TwoArms:
    """Values of two arms, one of each to a trial.

    Attributes:
        candidate: [n].
        baseline: [n], of the same pairs.
    """

    candidate: FloatArray
    baseline: FloatArray

    @property
    def num(self) -> int:
        """Pairs."""
        return len(self.candidate)

    def first(self: Compared, num: int) -> Compared:
        """What was known after ``num`` pairs."""
        return replace(self, candidate=self.candidate[:num], baseline=self.baseline[:num])


@dataclass(frozen=True)
class RatioOfTimes(TwoArms):
    """Some ratio of the times of both arms, less 1.

    Attributes:
        candidate: [n], at least 0, inf where there was no answer.
        baseline: [n], likewise.
    """

    @property
    def losses(self) -> tuple[float, float]:
        """Ratios from 0 to 10."""
        return -1.0, 9.0


@dataclass(frozen=True)
class MeanDifference(TwoArms):
    """Mean of one arm less that of another, of values in [0, 1]: of shares, in points.

    Attributes:
        sign: 1 where more is worse, -1 where less is.
    """

    sign: Literal[1, -1] = 1

    @property
    def losses(self) -> tuple[float, float]:
        """Of differences of shares."""
        return -1.0, 1.0

    @property
    def estimate(self) -> float | None:
        """Difference of the means."""
        return float(self._differences.mean()) if self.num else None

    @property
    def _differences(self) -> FloatArray:
        return self.sign * (self.candidate - self.baseline)

    def log_evidence(self, side: Side, loss: float, growth: float = 1.0) -> float:
        """By bets on the difference, which is -1 at least."""
        excess = self._differences - loss
        if side == "above":
            return bets.log_evidence(excess, 1 + loss, growth)
        return bets.log_evidence(-excess, 1 - loss, growth)


@dataclass(frozen=True)
class MeanRatio(TwoArms):
    """Mean of one arm over that of another, of values in [0, 1]; the loss is relative.

    A ratio r of means is a mean of differences: that of x - r y is 0.

    Attributes:
        sign: 1 where more is worse: the ratio is 1 + loss. -1 where less is: it is 1 - loss.
    """

    sign: Literal[1, -1]

    @property
    def losses(self) -> tuple[float, float]:
        """Ratios from 0 to 10."""
        return (-1.0, 9.0) if self.sign == 1 else (-9.0, 1.0)

    @property
    def estimate(self) -> float | None:
        """From the ratio of the means."""
        if not self.num or not self.baseline.any():
            return None
        return float(self.sign * (self.candidate.mean() / self.baseline.mean() - 1))

    def log_evidence(self, side: Side, loss: float, growth: float = 1.0) -> float:
        """By bets on x - r y, which lies between -r and 1."""
        ratio = 1 + self.sign * loss
        excess = self.candidate - ratio * self.baseline
        if (side == "above") == (self.sign == 1):
            return bets.log_evidence(excess, ratio, growth)
        return bets.log_evidence(-excess, 1.0, growth)


@dataclass(frozen=True)
class MedianRatio(RatioOfTimes):
    """Median of the ratios of pairs less 1: of two arms whose times differ by a factor, that factor.

    Neither a unit nor a bound is needed, and a request that failed may count as infinitely slow.
    """

    @property
    def estimate(self) -> float | None:
        """Of the pairs that have a ratio."""
        known = (self.baseline > 0) & (np.isfinite(self.candidate) | np.isfinite(self.baseline))
        if not known.any():
            return None
        return float(np.median(self.candidate[known] / self.baseline[known])) - 1

    def log_evidence(self, side: Side, loss: float, growth: float = 1.0) -> float:
        """By the count of pairs beyond it: half of them, if it is the median."""
        limits = (1 + loss) * self.baseline
        is_beyond = self.candidate > limits if side == "above" else self.candidate < limits
        return float(counts.log_evidence("above", growth * is_beyond.sum(), growth * self.num, 0.5))
