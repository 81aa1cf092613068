"""Predicts which draft tokens the target accepts.

The *top-2 gap* of a draft token is the lead of its score over the next best, in nats and including noise.
Target and draft use the same noise, so a token with a wide gap also wins with the target unless the models
disagree by more than that. The gap therefore predicts acceptance for greedy and for sampled tokens, which the
draft's probability of a sampled token does not.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

GAP_EDGES = (0.5, 1.5, 3.0)
"""Bounds of the classes of gaps, in nats."""

# Acceptance by class before anything was seen. Qwen2.5-Coder 0.5B for 1.5B, four kinds of text.
_FIRST_RATES = (0.45, 0.65, 0.85, 0.96)
_FIRST_WEIGHT = 5.0  # draft tokens of each class that these count as
_MEMORY = 300.0  # draft tokens, of which the latest count most
FORGOTTEN = 0.002
"""Part of what was seen that counts no more after a round without news of it: all may have changed."""


class Acceptance:
    """What all requests of a server have shown about its draft.

    Attributes:
        rates: Share of the draft tokens of each class of gaps that are accepted.
        mean: Probability that the next draft token is accepted, before its gap is known.
    """

    def __init__(self) -> None:
        self._seen = [0.0] * len(_FIRST_RATES)  # draft tokens of each class
        self._accepted = [0.0] * len(_FIRST_RATES)
        self._expect()

    def rate(self, gap: float) -> float:
        """Return the probability that a draft token is accepted if those before it are."""
        return self.rates[bisect_right(GAP_EDGES, gap)]

    def observe(self, gaps: Sequence[float | None], num_accepted: int) -> None:
        """Learn from draft tokens, in order; what follows the first rejected one tells nothing.

        A token whose gap is not known counts as some of each class.
        """
        for index, gap in enumerate(gaps[: num_accepted + 1]):
            self._fade(1 / _MEMORY)
            classes = range(len(_FIRST_RATES)) if gap is None else (bisect_right(GAP_EDGES, gap),)
            for gap_class in classes:
                self._seen[gap_class] += 1 / len(classes)
                self._accepted[gap_class] += (index < num_accepted) / len(classes)
        self._expect()

    def forget(self) -> None:
        """Believe less in what was seen: a round did not draft."""
        self._fade(FORGOTTEN)
        self._expect()

    def _fade(self, share: float) -> None:
        self._seen = [(1 - share) * count for count in self._seen]
        self._accepted = [(1 - share) * count for count in self._accepted]

    def _expect(self) -> None:
        counts = [_FIRST_WEIGHT + seen for seen in self._seen]
        accepted = [
            _FIRST_WEIGHT * rate + count for rate, count in zip(_FIRST_RATES, self._accepted, strict=True)
        ]
        self.rates = [part / count for part, count in zip(accepted, counts, strict=True)]
        self.mean = sum(accepted) / sum(counts)
