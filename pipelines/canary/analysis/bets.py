"""Evidence about means of bounded values by betting; it may be looked at after every value.

To refute "the mean of the stakes is at most 0", wealth 1 is bet on them: a stake v makes of it
1 + f v / worst, where f is the fraction of the wealth that may be lost at once and ``worst`` the largest
loss possible. If the mean is at most 0 no such wealth grows on average (a test supermartingale), nor does
the mean of several with different fractions; so it ever reaches 1 / alpha with probability alpha at most
(Ville's inequality). Where the mean is above 0 the wealth grows exponentially, at nearly the best rate that
any fraction has. Nothing is assumed of the stakes but the bound, not even that they have one law: each one's
mean given all earlier ones must be at most 0.

Fixed fractions, mixed, make the evidence a function of the values and not of their order.

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
    """Natural logarithm of the evidence (an e-value) against "the mean of the stakes is at most 0".

    Args:
        stakes: [n], each at least -``worst``.
        worst: Above 0.
        growth: As if each value had come so many times.
    """
    gains = growth * np.log1p(np.multiply.outer(_FRACTIONS, stakes / worst)).sum(axis=1)
    return float(np.logaddexp.reduce(gains)) - math.log(len(_FRACTIONS))


def log_evidence_path(stakes: FloatArray, worst: float) -> FloatArray:
    """The same after each value: float64 [n]."""
    gains = np.log1p(np.multiply.outer(_FRACTIONS, stakes / worst)).cumsum(axis=1)
    path: FloatArray = np.logaddexp.reduce(gains, axis=0) - math.log(len(_FRACTIONS))
    return path
