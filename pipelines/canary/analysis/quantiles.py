"""Quantiles of times: a bound of one arm's, and how two arms' compare.

The share of values up to a quantile is known, so evidence about a rate (``counts``) is evidence about the
quantile: where too few values are at most z, the quantile lies above z. Two arms: if the candidate's quantile
were at most (1 + loss) times the baseline's, there would be some z with the baseline's at or above z and
the candidate's at or below (1 + loss) z. Against a given z speaks either arm, or both together: the mean of
their evidence and of its product. Against all z, the least of these.

Source: Howard and Ramdas 2022, "Sequential estimation of quantiles with applications to A/B testing and
best-arm identification", Bernoulli 28, arXiv 1906.09712 (confidence sequences for a fixed quantile by
inverting those of its rate; two-sample tests as the least over the common quantile).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pipelines.canary.analysis import counts
from pipelines.canary.analysis.counts import FloatArray, Side
from pipelines.canary.analysis.measures import RatioOfTimes


@dataclass(frozen=True)
class QuantileRatio(RatioOfTimes):
    """Quantile of the candidate over that of the baseline, less 1; they need not be pairs.

    Attributes:
        quantile: Which, between 0 and 1.
    """

    quantile: float

    @property
    def estimate(self) -> float | None:
        """Ratio of the nearest ranks."""
        if not self.num:
            return None
        ours, theirs = (nearest_rank(values, self.quantile) for values in (self.candidate, self.baseline))
        return ours / theirs - 1 if math.isfinite(theirs) else None

    def log_evidence(self, side: Side, loss: float, growth: float = 1.0) -> float:
        """The least over the quantile that both arms might have."""
        scaled = np.sort((1 + loss) * self.baseline)
        candidate = np.sort(self.candidate)
        high, low = (candidate, scaled) if side == "above" else (scaled, candidate)
        return _log_evidence_apart(low, high, self.quantile, growth)


def _log_evidence_apart(low: FloatArray, high: FloatArray, quantile: float, growth: float) -> float:
    """Evidence that the quantile of ``high`` lies above that of ``low``; both sorted."""
    # Both counts change at values of the samples only, and are least there.
    places = np.concatenate(([-np.inf], low, high))
    num_high = np.searchsorted(high, places, side="right")
    num_low = np.searchsorted(low, places, side="left")
    above = _table("below", len(high), quantile, growth)[num_high]  # few of them: the quantile is higher
    below = _table("above", len(low), quantile, growth)[num_low]
    either = np.logaddexp.reduce((above, below, above + below)) - math.log(3)
    return float(np.min(either))


def _table(side: Side, num: int, rate: float, growth: float) -> FloatArray:
    """float64 [n + 1]: evidence for each count."""
    return counts.log_evidence(side, growth * np.arange(num + 1), growth * num, rate)


def nearest_rank(values: FloatArray, quantile: float) -> float:
    """The least value that so large a share of all does not exceed."""
    return float(np.sort(values)[max(0, math.ceil(quantile * len(values)) - 1)])


def quantile_bounds(values: FloatArray, quantile: float, alpha: float) -> tuple[float, float]:
    """Between which values a quantile lies; each bound fails at any time with probability ``alpha`` at most.

    Args:
        values: [n], in any order.
        quantile: Which, between 0 and 1.
        alpha: Of each bound.

    Returns:
        -inf and inf where too few values were seen.
    """
    ordered = np.concatenate(([-np.inf], np.sort(values), [np.inf]))
    needed = math.log(1 / alpha)
    # With the quantile at or below the k-th value, k values at least would be expected below it.
    is_above = _table("below", len(values), quantile, 1.0) >= needed  # by the number of values up to z
    is_below = _table("above", len(values), quantile, 1.0) >= needed
    lower = ordered[int(is_above.sum())]
    upper = ordered[len(values) + 1 - int(is_below.sum())]
    return float(lower), float(upper)
