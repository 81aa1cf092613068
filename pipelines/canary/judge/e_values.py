"""Anytime-valid evidence, as e-values, and its adjustment for several tests.

*Means.* To refute "the mean of the stakes is at most 0", a wealth of 1 is bet on them: a stake v multiplies
it by 1 + f v / worst, where f is the fraction of the wealth at risk and -``worst`` the lowest possible stake.
If the mean is at most 0, no such wealth grows on average (a test supermartingale), nor does the mean over
several fractions; so it ever reaches 1 / alpha with probability alpha at most (Ville's inequality). If the
mean is above 0, the wealth grows exponentially, at nearly the rate of the best fraction. The stakes must be
bounded and need not be identically distributed: the mean of each, given all earlier ones, must be at most 0.

Mixing fixed fractions makes the evidence depend on the values and not on their order.

Source: Waudby-Smith and Ramdas 2024, "Estimating means of bounded random variables by betting", JRSS B 86,
arXiv 2010.09686 (capital process, eq. 24; mixing fixed bets: their diversified or "grid" Kelly bets).

*Rates.* To refute "the rate is at most p", the likelihood ratio of all rates above p to p is averaged with
the weights of Jeffreys' prior. If the rate is p or less, no such ratio grows on average, so the average ever
reaches 1 / alpha with probability alpha at most. It has a closed form that depends on the count alone.

Sources: Robbins 1970, "Statistical methods related to the law of the iterated logarithm" (mixtures of
likelihood ratios); Howard, Ramdas, McAuliffe and Sekhon 2021, "Time-uniform, nonparametric, nonasymptotic
confidence sequences", Annals of Statistics 49, arXiv 1810.08240 (beta-binomial mixture, one- and two-sided);
Lindon and Malek 2022, arXiv 2011.03567, for counts in A/B tests.

*Several tests.* The mean of e-values is an e-value, so "none of these metrics exceeds its limit" is refuted
if their mean reaches 1 / alpha. A metric exceeds its limit if that is refuted for every group that contains
it (closed testing). So the probability of ever refuting a true limit is alpha at most; and a metric whose
evidence is k / alpha, as Bonferroni requires of k metrics, is always detected.

Source: Vovk and Wang 2021, "E-values: calibration, combination and applications", Annals of Statistics 49,
arXiv 1912.06116 (the mean dominates every symmetric way to merge; algorithm 1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy import special

FloatArray = npt.NDArray[np.float64]
Side = Literal["above", "below"]

_PRIOR = 0.5  # both parameters of Jeffreys' beta prior

# A fraction that is wrong by a factor of sqrt(2) grows at least 0.83 times as fast as the best one (from
# 2x - x^2), so halving is fine enough. The best is about mean * worst / variance: seldom below the last one,
# and each one more costs the others evidence.
_FRACTIONS: FloatArray = 0.95 * 0.5 ** np.arange(8)


def mean_evidence(stakes: FloatArray, worst: float) -> float:
    """Compute the log of the e-value against "the mean of the stakes is at most 0".

    Args:
        stakes: [n], each at least -``worst``.
        worst: Bound of the stakes, above 0.
    """
    gains = np.log1p(np.multiply.outer(_FRACTIONS, stakes / worst)).sum(axis=1)
    return float(np.logaddexp.reduce(gains)) - math.log(len(_FRACTIONS))


def rate_evidence(
    side: Side, num_events: npt.ArrayLike, num_trials: npt.ArrayLike, rate: float
) -> FloatArray:
    """Compute the log evidence that the true rate lies on one side of ``rate``.

    Args:
        side: "above" refutes "at most ``rate``", "below" refutes "at least ``rate``".
        num_events: Number of events, 0 to ``num_trials``.
        num_trials: Number of trials, broadcast with ``num_events``.
        rate: Rate between 0 and 1, exclusive.
    """
    events = np.asarray(num_events, np.float64)
    others = np.asarray(num_trials, np.float64) - events
    with np.errstate(divide="ignore"):  # log 0 stands for no evidence
        seen = np.log(_share(side, events + _PRIOR, others + _PRIOR, rate))
    seen += special.betaln(events + _PRIOR, others + _PRIOR)
    before = np.log(_share(side, _PRIOR, _PRIOR, rate)) + special.betaln(_PRIOR, _PRIOR)
    evidence: FloatArray = seen - before - events * np.log(rate) - others * np.log1p(-rate)
    return evidence


def adjusted(log_evidence: Sequence[float]) -> FloatArray:
    """Adjust evidence for the number of tests.

    Args:
        log_evidence: [k], natural logarithms of e-values.

    Returns:
        float64 [k]: log of the least mean over all groups that contain it. The worst group of a given size
        contains the smallest other values.
    """
    values = np.asarray(log_evidence, np.float64)
    found = np.empty(len(values))
    for index, value in enumerate(values):
        smallest = np.sort(np.delete(values, index))
        sums = np.logaddexp.accumulate(np.concatenate(([value], smallest)))
        found[index] = np.min(sums - np.log(np.arange(1, len(values) + 1)))
    return found


def _share(side: Side, a: npt.ArrayLike, b: npt.ArrayLike, rate: float) -> Any:
    """Integrate a beta distribution on one side of ``rate``; ``betaincc`` would be ten times slower."""
    return special.betainc(b, a, 1 - rate) if side == "above" else special.betainc(a, b, rate)
