"""Power of a chi-square test over counted tokens, computed before the data are seen.

The alternative is always the worst one. A distribution q that differs from p by total variation TV, with
excess TV on a set of cells of probability a, has chi-square distance sum((q - p)^2 / p) >= TV^2 / (a (1 - a))
(Cauchy-Schwarz on the set and on its complement), and a (1 - a) <= 1/4. So n samples have noncentrality

    lambda >= n (2 TV)^2

whatever p and q are, with equality when the deviation is spread evenly over two halves of equal
probability. Any other deviation of that size is detected with more power. The power is the upper tail of
the noncentral chi-square distribution beyond the critical value of the central one.

TV is measured between the cells of the test; what pooling hides is ``CellTest.pooled_probability``.

Sources: Cohen 1988, "Statistical Power Analysis", chapter 7 (w = 2 TV here, lambda = n w^2); Patnaik 1949,
Biometrika 36 (noncentral chi-square approximates the distribution of Pearson's statistic under an
alternative).
"""

from __future__ import annotations

import math

from scipy import special


def critical_value(alpha: float, dof: int) -> float:
    """Return the statistic above which a chi-square test with ``dof`` degrees of freedom rejects."""
    return float(special.chdtri(dof, alpha))


def power(num_samples: float, total_variation: float, dof: int, alpha: float) -> float:
    """Compute the least probability that the test rejects a distribution ``total_variation`` away.

    Args:
        num_samples: Number of samples n; for two samples of n and m, ``samples_in_comparison(n, m)``.
        total_variation: TV between the two distributions on the cells of the test, 0 to 1.
        dof: Number of cells less 1, at least 1.
        alpha: Probability that this test rejects the right distribution.
    """
    noncentrality = num_samples * (2 * total_variation) ** 2
    if noncentrality == 0:
        return alpha
    return 1.0 - float(special.chndtr(critical_value(alpha, dof), dof, noncentrality))


def noncentrality_needed(dof: int, alpha: float, power: float) -> float:
    """Compute the noncentrality at which a test has ``power``, which must be above ``alpha``."""
    return float(special.chndtrinc(critical_value(alpha, dof), dof, 1.0 - power))


def detectable_total_variation(num_samples: float, dof: int, alpha: float, power: float) -> float:
    """Compute the smallest total variation that is detected with at least ``power``.

    A result above 1 means that so few samples detect no distribution with that power.
    """
    return 0.5 * math.sqrt(noncentrality_needed(dof, alpha, power) / num_samples)


def samples_in_comparison(num_first: int, num_second: int) -> float:
    """Compute how many samples against a known distribution have the power of comparing two samples.

    Pearson's statistic of a 2 x k table has noncentrality n m / (n + m) * sum((p - q)^2 / r), r being the
    mixture of both distributions, and that sum is at least (2 TV)^2 by the argument above. Two samples of n
    are worth n / 2 against a known distribution.
    """
    return num_first * num_second / (num_first + num_second)
