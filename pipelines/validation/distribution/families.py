"""Divide alpha among several tests, so that the probability of any false rejection stays below alpha."""

from __future__ import annotations


def alpha_of_each(alpha: float, num_tests: int) -> float:
    """Return Bonferroni's level of each test, which is known in advance, so power can be computed with it."""
    return alpha / num_tests
