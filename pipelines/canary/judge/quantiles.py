"""Anytime-valid comparison of a quantile of the times of two arms.

The share of values up to a quantile is known, so evidence about a rate (``counts``) is evidence about the
quantile: if too few values are at most z, the quantile lies above z. If the candidate's quantile were at most
(1 + regression) times the baseline's, there would be some z with the baseline's quantile at or above z and
the candidate's at or below (1 + regression) z. The evidence against one z is the mean of both arms' evidence
and its product; the evidence against all z is the least of these.

Source: Howard and Ramdas 2022, "Sequential estimation of quantiles with applications to A/B testing and
best-arm identification", Bernoulli 28, arXiv 1906.09712 (confidence sequences for a fixed quantile by
inverting those of its rate; two-sample tests as the least over the common quantile).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pipelines.canary.judge import counts
from pipelines.canary.judge.counts import FloatArray, Side
from pipelines.canary.judge.measures import RatioOfTimes


@dataclass(frozen=True)
class QuantileRatio(RatioOfTimes):
    """Ratio of a quantile of the candidate to that of the baseline, less 1; values need not be paired.

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

    def log_evidence(self, side: Side, regression: float, growth: float = 1.0) -> float:
        """Compute the least evidence over all values that the quantiles might have."""
        scaled = np.sort((1 + regression) * self.baseline)
        candidate = np.sort(self.candidate)
        high, low = (candidate, scaled) if side == "above" else (scaled, candidate)
        return _log_evidence_apart(low, high, self.quantile, growth)


def _log_evidence_apart(low: FloatArray, high: FloatArray, quantile: float, growth: float) -> float:
    """Compute the log evidence that the quantile of ``high`` lies above that of ``low``; both are sorted."""
    # Both counts change only at values of the samples, so the minimum is there.
    places = np.concatenate(([-np.inf], low, high))
    num_high = np.searchsorted(high, places, side="right")
    num_low = np.searchsorted(low, places, side="left")
    above = _table("below", len(high), quantile, growth)[num_high]  # low counts show a higher quantile
    below = _table("above", len(low), quantile, growth)[num_low]
    either = np.logaddexp.reduce((above, below, above + below)) - math.log(3)
    return float(np.min(either))


def _table(side: Side, num: int, rate: float, growth: float) -> FloatArray:
    """Return the evidence for each count from 0 to ``num``: float64 [num + 1]."""
    return counts.log_evidence(side, growth * np.arange(num + 1), growth * num, rate)


def nearest_rank(values: FloatArray, quantile: float) -> float:
    """Return the nearest-rank quantile of values."""
    return float(np.sort(values)[max(0, math.ceil(quantile * len(values)) - 1)])
