"""Predicts which draft tokens the target accepts.

The *top-2 gap* of a draft token is the lead of its score over the next best, in nats and including noise.
Target and draft use the same noise, so a token with a wide gap also wins with the target unless the models
disagree by more than that. The gap therefore predicts acceptance for greedy and for sampled tokens, which the
draft's probability of a sampled token does not.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

GAP_EDGES = (0.5, 1.5, 3.0)
"""Bounds of the classes of gaps, in nats."""

# Acceptance by class before anything was seen. Qwen2.5-Coder 0.5B for 1.5B, four kinds of text.
_FIRST_RATES = np.array((0.45, 0.65, 0.85, 0.96))
_FIRST_WEIGHT = 10.0  # draft tokens of each class that these count as
_MEMORY = 300.0  # draft tokens, of which the latest count most
_PATIENCE = 0.001  # by which a round without drafts returns to the first rates: the text may have changed


class Acceptance:
    """What all requests of a server have shown about its draft.

    Attributes:
        rates: float64 [classes], share of the draft tokens of a class of gaps that are accepted.
    """

    def __init__(self) -> None:
        self.rates: npt.NDArray[np.float64] = _FIRST_RATES.copy()
        self._counts = np.full(len(_FIRST_RATES), _FIRST_WEIGHT)

    @property
    def mean(self) -> float:
        """Probability that the next draft token is accepted, before its gap is known."""
        return float(self.rates @ self._counts / self._counts.sum())

    def rate(self, gap: float) -> float:
        """Return the probability that a draft token is accepted if those before it are."""
        return float(self.rates[bisect_right(GAP_EDGES, gap)])

    def observe(self, gaps: Sequence[float], num_accepted: int) -> None:
        """Learn from draft tokens, in order; what follows the first rejected one tells nothing."""
        for index, gap in enumerate(gaps[: num_accepted + 1]):
            gap_class = bisect_right(GAP_EDGES, gap)
            self._counts *= 1 - 1 / _MEMORY
            self._counts[gap_class] += 1
            self.rates[gap_class] += ((index < num_accepted) - self.rates[gap_class]) / self._counts[
                gap_class
            ]

    def observe_unseen(self, num_drafted: int, num_accepted: int) -> None:
        """Learn from draft tokens whose gaps are not known: all classes move alike."""
        for index in range(min(num_drafted, num_accepted + 1)):
            change = ((index < num_accepted) - self.mean) / _MEMORY
            self.rates = np.clip(self.rates + change, 0.0, 1.0)

    def forget(self) -> None:
        """Believe a little more in the draft again: a round did not use it."""
        self.rates += _PATIENCE * (_FIRST_RATES - self.rates)
