"""Pearson's chi-square test of two samples: whether their counts come from one distribution.

Source: Pearson 1900; Cochran 1954, "Some methods for strengthening the common chi-square tests" (expected
counts of at least 5); Agresti 2013, "Categorical Data Analysis", 1.5 and 3.2.

Power before the data are seen. The alternative is always the worst one. A distribution q that differs from p
by total variation TV, with excess TV on a set of cells of probability a, has chi-square distance sum((q -
p)^2 / p) >= TV^2 / (a (1 - a)) (Cauchy-Schwarz on the set and on its complement), and a (1 - a) <= 1/4. So n
samples have noncentrality

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

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

MIN_EXPECTED = 5.0
"""Cells with a lower expected count are pooled. The tail beyond alpha = 1e-9 needs about 25: one cell with
an expected count of 5 exceeds the critical value of 15 degrees of freedom by itself with probability 8e-10,
one with 25 with probability 3e-12 (Poisson tails)."""


@dataclass(frozen=True)
class CellTest:
    """Outcome of one test.

    Attributes:
        statistic: Sum of (observed - expected)^2 / expected; infinite if an outcome of probability 0 was
            observed.
        dof: Number of cells after pooling less 1. With 0 only outcomes of probability 0 are tested for:
            ``p_value`` is 1 or 0.
        p_value: Probability of this statistic or a larger one if the distributions are equal.
        num_samples: Number of samples against a known distribution that have the same power.
        pooled_probability: Probability of the cells that were merged into one. If the distributions differ
            by TV over all cells, they differ by at least TV less this over the cells of the test.
    """

    statistic: float
    dof: int
    p_value: float
    num_samples: float
    pooled_probability: float


def compare_samples(first: npt.NDArray[np.int64], second: npt.NDArray[np.int64]) -> CellTest:
    """Test whether two samples are homogeneous.

    Cells are pooled by their sum over both samples, which says nothing about the difference of the samples.

    Args:
        first: [k], how often each outcome was seen in one sample.
        second: [k], how often each was seen in the other.

    Raises:
        ValueError: A sample is empty.
    """
    num_first, num_second = int(first.sum()), int(second.sum())
    if not num_first or not num_second:
        raise ValueError(f"{num_first} and {num_second} samples")
    num_all = num_first + num_second
    together = (first + second).astype(np.float64)
    is_seen = together > 0
    pool = pool_cells(together[is_seen] * min(num_first, num_second) / num_all, MIN_EXPECTED)
    both = merge_cells(together[is_seen], pool)
    statistic = 0.0
    for counts, num_samples in ((first, num_first), (second, num_second)):
        expected = both * num_samples / num_all
        statistic += float(np.sum((merge_cells(counts[is_seen], pool) - expected) ** 2 / expected))
    pooled_probability = float(together[is_seen][pool].sum()) / num_all
    return outcome_of(statistic, len(both), samples_in_comparison(num_first, num_second), pooled_probability)


def pool_cells(expected: npt.NDArray[np.float64], min_expected: float) -> npt.NDArray[np.bool_]:
    """Choose the cells to merge: all below ``min_expected``, then the next smallest until the sum reaches it.

    Args:
        expected: [k], expected count of each cell.
        min_expected: Least expected count of the merged cell.

    Returns:
        [k], whether each cell is merged.
    """
    by_size = np.argsort(expected, kind="stable")
    totals = np.cumsum(expected[by_size])
    num_small = int(np.sum(expected < min_expected))
    while 0 < num_small < len(expected) and totals[num_small - 1] < min_expected:
        num_small += 1
    pool = np.zeros(len(expected), np.bool_)
    pool[by_size[:num_small]] = True
    return pool


def merge_cells(
    values: npt.NDArray[np.float64] | npt.NDArray[np.int64], pool: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float64]:
    """Return the cells that are not in ``pool``, followed by the sum of those that are."""
    kept = values[~pool].astype(np.float64)
    return np.append(kept, values[pool].sum()) if pool.any() else kept


def outcome_of(statistic: float, num_cells: int, num_samples: float, pooled_probability: float) -> CellTest:
    """Look the p-value of a statistic up in the chi-square distribution."""
    dof = num_cells - 1
    p_value = float(special.chdtrc(dof, statistic) if dof else statistic < np.inf)
    return CellTest(statistic, dof, p_value, num_samples, pooled_probability)


def critical_value(alpha: float, dof: int) -> float:
    """Return the statistic above which a chi-square test with ``dof`` degrees of freedom rejects."""
    return float(special.chdtri(dof, alpha))


def noncentrality_needed(dof: int, alpha: float, power: float) -> float:
    """Compute the noncentrality at which a test has ``power``, which must be above ``alpha``."""
    return float(special.chndtrinc(critical_value(alpha, dof), dof, 1.0 - power))


def samples_in_comparison(num_first: int, num_second: int) -> float:
    """Compute how many samples against a known distribution have the power of comparing two samples.

    Pearson's statistic of a 2 x k table has noncentrality n m / (n + m) * sum((p - q)^2 / r), r being the
    mixture of both distributions, and that sum is at least (2 TV)^2 by the argument above. Two samples of n
    are worth n / 2 against a known distribution.
    """
    return num_first * num_second / (num_first + num_second)
