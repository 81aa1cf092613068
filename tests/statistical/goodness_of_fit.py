"""Tests counts against a distribution that is known exactly, and computes the samples needed."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy import special

from pipelines.validation.distribution.chi_square import (
    MIN_EXPECTED,
    CellTest,
    critical_value,
    merge_cells,
    noncentrality_needed,
    outcome_of,
    pool_cells,
)


def fit(
    counts: npt.NDArray[np.int64], shares: npt.NDArray[np.float64], min_expected: float = MIN_EXPECTED
) -> CellTest:
    """Test the goodness of fit by Pearson's chi-square.

    Cells are pooled by the distribution and the number of samples alone. One count in a cell of probability 0
    refutes the distribution.

    Args:
        shares: [k], its probability under the distribution; sums to 1.
        min_expected: Least expected count of every cell of the test.

    Raises:
        ValueError: The probabilities do not sum to 1, or nothing was counted.
    """
    num_samples = int(counts.sum())
    if abs(float(shares.sum()) - 1.0) > 1e-9 or shares.min() < 0 or not num_samples:
        raise ValueError(f"sums to {shares.sum()}, smallest {shares.min()}, {num_samples} samples")
    is_possible = shares > 0
    pool = pool_cells(num_samples * shares[is_possible], min_expected)
    observed = merge_cells(counts[is_possible], pool)
    expected = merge_cells(num_samples * shares[is_possible], pool)
    statistic = float(np.sum((observed - expected) ** 2 / expected))
    if counts[~is_possible].any():
        statistic = np.inf
    return outcome_of(statistic, len(expected), num_samples, float(shares[is_possible][pool].sum()))


def samples_needed(total_variation: float, dof: int, alpha: float, power: float) -> int:
    """Compute how many samples detect ``total_variation`` with at least ``power``."""
    return math.ceil(noncentrality_needed(dof, alpha, power) / (2 * total_variation) ** 2)


def detectable_total_variation(num_samples: float, dof: int, alpha: float, power: float) -> float:
    """Compute the smallest total variation that is detected with at least ``power``.

    A result above 1 means that so few samples detect no distribution with that power.
    """
    return 0.5 * math.sqrt(noncentrality_needed(dof, alpha, power) / num_samples)


def power(num_samples: float, total_variation: float, dof: int, alpha: float) -> float:
    """Compute the least probability that a test at ``alpha`` rejects what is ``total_variation`` away."""
    noncentrality = num_samples * (2 * total_variation) ** 2
    if noncentrality == 0:
        return alpha
    return 1.0 - float(special.chndtr(critical_value(alpha, dof), dof, noncentrality))
