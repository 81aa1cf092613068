"""Several tests that are judged together: the probability that any rejects wrongly stays below alpha.

Source: Holm 1979, "A simple sequentially rejective multiple test procedure".
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def alpha_of_each(alpha: float, num_tests: int) -> float:
    """Bonferroni's share of each of ``num_tests`` tests; known beforehand, so power is computed with it."""
    return alpha / num_tests


def holm(p_values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """P-values adjusted for the family; each at most alpha rejects, in any dependence between the tests.

    Args:
        p_values: [k], one per test.

    Returns:
        float64 [k]: the i-th smallest (from 0) times k - i, never below its predecessor, at most 1.
    """
    given = np.asarray(p_values, np.float64)
    order = np.argsort(given, kind="stable")
    factors = np.arange(len(given), 0, -1)
    adjusted = np.empty(len(given))
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(given[order] * factors))
    return adjusted
