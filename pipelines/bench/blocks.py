"""Compute intervals of ratios between arms that were measured in turn, as randomised blocks.

A repetition is a block: a disturbance of the machine affects all of its arms. So the logarithm of an arm's
speed in a repetition is modelled as the sum of a term of the arm, a term of the repetition, and noise of the
same size for all arms of a cell. The residuals of a two-way analysis of variance estimate the noise from all
arms together, so three repetitions are enough.

Source: Montgomery, Design and Analysis of Experiments, chapter on randomised complete block designs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from scipy.stats import t as student

CONFIDENCE = 0.95
METHOD = (
    "ratios of geometric means; 95 % t intervals of randomised blocks: the repetition is the block, and the "
    "noise is what a two-way analysis of variance leaves of the logarithms of all arms of a cell"
)

ArmT = TypeVar("ArmT", bound=Hashable)


@dataclass(frozen=True)
class Interval:
    """A ratio with its 95 % confidence interval."""

    value: float
    low: float
    high: float


class Blocks(Generic[ArmT]):
    """Speeds of the arms of one cell.

    Args:
        speeds: Arm -> one positive speed per repetition; at least two arms and two repetitions.
    """

    def __init__(self, speeds: Mapping[ArmT, Sequence[float]]) -> None:
        logs = {arm: [math.log(speed) for speed in values] for arm, values in speeds.items()}
        self._means = {arm: statistics.fmean(values) for arm, values in logs.items()}
        overall = statistics.fmean(self._means.values())
        block_means = [statistics.fmean(block) for block in zip(*logs.values(), strict=True)]
        residuals = [
            value - self._means[arm] - block_mean + overall
            for arm, values in logs.items()
            for value, block_mean in zip(values, block_means, strict=True)
        ]
        degrees = (len(logs) - 1) * (len(block_means) - 1)
        noise = math.sqrt(sum(residual**2 for residual in residuals) / degrees)
        at_confidence = float(student.ppf((1 + CONFIDENCE) / 2, degrees))
        self._half_width = at_confidence * noise * math.sqrt(2 / len(block_means))  # of the log of a ratio

    def ratio(self, arm: ArmT, other: ArmT) -> Interval:
        """Return the ratio of the speed of ``arm`` to that of ``other``."""
        if arm == other:
            return Interval(1.0, 1.0, 1.0)
        ratio = self._means[arm] - self._means[other]
        return Interval(*map(math.exp, (ratio, ratio - self._half_width, ratio + self._half_width)))

    def fastest(self, arms: Sequence[ArmT]) -> ArmT:
        """Return the arm with the greatest geometric mean."""
        return max(arms, key=lambda arm: self._means[arm])
