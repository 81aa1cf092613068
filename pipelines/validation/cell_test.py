"""Pearson's chi-square test: counts against a known law, or against other counts.

Source: Pearson 1900; Cochran 1954, "Some methods for strengthening the common chi-square tests" (expected
counts of at least 5); Agresti 2013, "Categorical Data Analysis", 1.5 and 3.2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from pipelines.validation.power import samples_in_comparison

MIN_EXPECTED = 5.0
"""Expected count below which a cell is pooled. The tail beyond alpha = 1e-9 wants about 25: one cell that
expects 5 exceeds the critical value of 15 degrees of freedom alone with probability 8e-10, one that
expects 25 with probability 3e-12 (Poisson tails)."""


@dataclass(frozen=True)
class CellTest:
    """Outcome of one test.

    Attributes:
        statistic: Sum of (observed - expected)^2 / expected; infinite if something impossible happened.
        dof: Cells after pooling less 1. With 0 only the impossible is tested: ``p_value`` is 1 or 0.
        p_value: Probability of such a statistic or a larger one if the laws are equal.
        num_samples: As ``power.power`` wants them.
        pooled_probability: Of the cells that were merged into one. If the laws differ by TV over all
            cells, they differ by at least TV less this over the cells of the test.
    """

    statistic: float
    dof: int
    p_value: float
    num_samples: float
    pooled_probability: float


def cells_for(
    law: npt.NDArray[np.float64], num_samples: int, min_expected: float = MIN_EXPECTED
) -> tuple[int, float]:
    """``dof`` and ``pooled_probability`` that ``fit_to_law`` will have; what a size is planned with."""
    possible = law[law > 0]
    pool = _pool(num_samples * possible, min_expected)
    return len(_merge(possible, pool)) - 1, float(possible[pool].sum())


def fit_to_law(
    counts: npt.NDArray[np.int64], law: npt.NDArray[np.float64], min_expected: float = MIN_EXPECTED
) -> CellTest:
    """Goodness of fit.

    Cells are pooled by the law and the number of samples alone. A count in a cell of probability 0 refutes
    the law by itself.

    Args:
        counts: [k], how often each outcome was seen.
        law: [k], its probability under the law; sums to 1.
        min_expected: Expected count of every cell of the test.

    Raises:
        ValueError: The probabilities do not sum to 1, or nothing was counted.
    """
    num_samples = int(counts.sum())
    if abs(float(law.sum()) - 1.0) > 1e-9 or law.min() < 0 or not num_samples:
        raise ValueError(f"law sums to {law.sum()}, smallest {law.min()}, {num_samples} samples")
    is_possible = law > 0
    pool = _pool(num_samples * law[is_possible], min_expected)
    observed, expected = _merge(counts[is_possible], pool), _merge(num_samples * law[is_possible], pool)
    statistic = float(np.sum((observed - expected) ** 2 / expected))
    if counts[~is_possible].any():
        statistic = np.inf
    return _outcome(statistic, len(expected), num_samples, float(law[is_possible][pool].sum()))


def compare_samples(
    first: npt.NDArray[np.int64], second: npt.NDArray[np.int64], min_expected: float = MIN_EXPECTED
) -> CellTest:
    """Homogeneity of two samples.

    Cells are pooled by what both samples have together, which says nothing about their difference.

    Args:
        first: [k], how often each outcome was seen in one sample.
        second: [k], in the other.
        min_expected: Expected count of every cell in the smaller sample.

    Raises:
        ValueError: A sample is empty.
    """
    num_first, num_second = int(first.sum()), int(second.sum())
    if not num_first or not num_second:
        raise ValueError(f"{num_first} and {num_second} samples")
    num_all = num_first + num_second
    together = (first + second).astype(np.float64)
    is_seen = together > 0
    pool = _pool(together[is_seen] * min(num_first, num_second) / num_all, min_expected)
    both = _merge(together[is_seen], pool)
    statistic = 0.0
    for counts, num_samples in ((first, num_first), (second, num_second)):
        expected = both * num_samples / num_all
        statistic += float(np.sum((_merge(counts[is_seen], pool) - expected) ** 2 / expected))
    pooled_probability = float(together[is_seen][pool].sum()) / num_all
    return _outcome(statistic, len(both), samples_in_comparison(num_first, num_second), pooled_probability)


def _pool(expected: npt.NDArray[np.float64], min_expected: float) -> npt.NDArray[np.bool_]:
    """Cells to be merged into one: those that expect too little, and the next smallest until it is enough."""
    by_size = np.argsort(expected, kind="stable")
    totals = np.cumsum(expected[by_size])
    num_small = int(np.sum(expected < min_expected))
    while 0 < num_small < len(expected) and totals[num_small - 1] < min_expected:
        num_small += 1
    pool = np.zeros(len(expected), np.bool_)
    pool[by_size[:num_small]] = True
    return pool


def _merge(
    values: npt.NDArray[np.float64] | npt.NDArray[np.int64], pool: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float64]:
    kept = values[~pool].astype(np.float64)
    return np.append(kept, values[pool].sum()) if pool.any() else kept


def _outcome(statistic: float, num_cells: int, num_samples: float, pooled_probability: float) -> CellTest:
    dof = num_cells - 1
    p_value = float(special.chdtrc(dof, statistic) if dof else statistic < np.inf)
    return CellTest(statistic, dof, p_value, num_samples, pooled_probability)
