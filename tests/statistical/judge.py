"""Defines one family of tests at one alpha: when a test rejects, and what it can detect."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipelines.validation.distribution.chi_square import CellTest
from tests.statistical.goodness_of_fit import detectable_total_variation, fit, power

FAMILY_ALPHA = 1e-9
NUM_TESTS = 40
"""At least the number of tests of one run in this folder.

It includes those that only assert a p-value; ``conftest`` counts the others.
"""

ALPHA = FAMILY_ALPHA / NUM_TESTS
POWER = 0.99
TOTAL_VARIATION = 0.01
"""The deviation that a full-size test detects with ``POWER``."""

MIN_EXPECTED = 25.0  # see pipelines.validation.distribution.chi_square.MIN_EXPECTED


@dataclass(frozen=True)
class Judgement:
    """One test and its power."""

    name: str
    outcome: CellTest

    @property
    def is_rejected(self) -> bool:
        """Whether the samples refute the hypothesis."""
        return self.outcome.p_value <= ALPHA

    @property
    def detectable(self) -> float:
        """The total variation that is detected with ``POWER``, wherever it lies, also within pooled cells."""
        between = detectable_total_variation(self.outcome.num_samples, self.outcome.dof, ALPHA, POWER)
        return between + self.outcome.pooled_probability

    def power_at(self, total_variation: float) -> float:
        """Return the probability that this test detects a deviation, wherever it lies."""
        between = max(0.0, total_variation - self.outcome.pooled_probability)
        return power(self.outcome.num_samples, between, self.outcome.dof, ALPHA)

    def __str__(self) -> str:
        return (
            f"{self.name}: n={self.outcome.num_samples:.0f}, dof={self.outcome.dof}, "
            f"p={self.outcome.p_value:.2g}; power at TV {TOTAL_VARIATION}: "
            f"{self.power_at(TOTAL_VARIATION):.4f}; TV {self.detectable:.4f} is detected with power {POWER}"
        )


def judge_law(name: str, counts: np.ndarray, law: np.ndarray) -> Judgement:
    """Test counts against the distribution that they must follow."""
    return Judgement(name, fit(counts, law, MIN_EXPECTED))
