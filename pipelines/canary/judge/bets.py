"""Anytime-valid evidence about means of bounded values by betting.

To refute "the mean of the stakes is at most 0", a wealth of 1 is bet on them: a stake v multiplies it by
1 + f v / worst, where f is the fraction of the wealth at risk and -``worst`` the lowest possible stake. If
the mean is at most 0, no such wealth grows on average (a test supermartingale), nor does the mean over
several fractions; so it ever reaches 1 / alpha with probability alpha at most (Ville's inequality). If the
mean is above 0, the wealth grows exponentially, at nearly the rate of the best fraction. The stakes must be
bounded and need not be identically distributed: the mean of each, given all earlier ones, must be at most 0.

Mixing fixed fractions makes the evidence depend on the values and not on their order.

Source: Waudby-Smith and Ramdas 2024, "Estimating means of bounded random variables by betting", JRSS B 86,
arXiv 2010.09686 (capital process, eq. 24; mixing fixed bets: their diversified or "grid" Kelly bets).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

# A fraction that is wrong by a factor of sqrt(2) grows at least 0.83 times as fast as the best one (from
# 2x - x^2), so halving is fine enough. The best is about mean * worst / variance: seldom below the last one,
# and each one more costs the others evidence.
_FRACTIONS: FloatArray = 0.95 * 0.5 ** np.arange(8)


def log_evidence(stakes: FloatArray, worst: float, growth: float = 1.0) -> float:
    """Compute the log of the e-value against "the mean of the stakes is at most 0".

    Args:
        stakes: [n], each at least -``worst``.
        worst: Bound of the stakes, above 0.
        growth: How often to count each value, to extrapolate a sample.
    """
    gains = growth * np.log1p(np.multiply.outer(_FRACTIONS, stakes / worst)).sum(axis=1)
    return float(np.logaddexp.reduce(gains)) - math.log(len(_FRACTIONS))
