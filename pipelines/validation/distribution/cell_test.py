"""Pearson's chi-square test of two samples: whether their counts come from one distribution.

Source: Pearson 1900; Cochran 1954, "Some methods for strengthening the common chi-square tests" (expected
counts of at least 5); Agresti 2013, "Categorical Data Analysis", 1.5 and 3.2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from pipelines.validation.distribution.power import samples_in_comparison

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
        num_samples: Number of samples in the sense of ``power.power``.
        pooled_probability: Probability of the cells that were merged into one. If the distributions differ
            by TV over all cells, they differ by at least TV less this over the cells of the test.
    """

    statistic: float
    dof: int
    p_value: float
    num_samples: float
    pooled_probability: float


def compare_samples(
    first: npt.NDArray[np.int64], second: npt.NDArray[np.int64], min_expected: float = MIN_EXPECTED
) -> CellTest:
    """Test whether two samples are homogeneous.

    Cells are pooled by their sum over both samples, which says nothing about the difference of the samples.

    Args:
        first: [k], how often each outcome was seen in one sample.
        second: [k], how often each was seen in the other.
        min_expected: Least expected count of every cell in the smaller sample.

    Raises:
        ValueError: A sample is empty.
    """
    num_first, num_second = int(first.sum()), int(second.sum())
    if not num_first or not num_second:
        raise ValueError(f"{num_first} and {num_second} samples")
    num_all = num_first + num_second
    together = (first + second).astype(np.float64)
    is_seen = together > 0
    pool = pool_cells(together[is_seen] * min(num_first, num_second) / num_all, min_expected)
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
