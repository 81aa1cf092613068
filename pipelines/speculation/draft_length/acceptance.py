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
_FIRST_RATES = (0.45, 0.65, 0.85, 0.96)
_LEAST_RATE, _CERTAIN = 0.02, 0.97  # least of a class, and most that is ever expected
_CLASS_MEMORY = 300.0  # draft tokens that the rate of a class remembers
# What each draft token leaves of the earlier ones: in the server's level, a request's level, and its shares.
_SERVER_MEMORY, _REQUEST_MEMORY, _SHARE_MEMORY = 0.98, 0.97, 0.97
_PRIOR_WEIGHT = 5.0  # draft tokens that the prior counts as
_PATIENCE = 0.98  # what a round without drafts leaves of what was seen: the text may have changed


class ServerAcceptance:
    """What all requests of a server have shown about its draft.

    Attributes:
        rates: float64 [classes], acceptance by class of the gap.
        shares: float64 [classes], how often each class occurs.
    """

    def __init__(self) -> None:
        self.rates: npt.NDArray[np.float64] = np.array(_FIRST_RATES)
        self.shares: npt.NDArray[np.float64] = np.full(len(_FIRST_RATES), 1 / len(_FIRST_RATES))
        self._accepted = self._expected = _PRIOR_WEIGHT

    @property
    def level(self) -> float:
        """Accepted over expected draft tokens of the latest requests."""
        return self._accepted / self._expected

    def observe(self, gap_class: int, level: float, *, was_accepted: bool) -> None:
        """Learn from a verified draft token of a request with this level."""
        rate = float(self.rates[gap_class])
        error = was_accepted - min(rate * level, _CERTAIN)
        self.rates[gap_class] = min(max(rate + error / _CLASS_MEMORY, _LEAST_RATE), 1.0)
        self.shares *= 1 - 1 / _CLASS_MEMORY
        self.shares[gap_class] += 1 / _CLASS_MEMORY
        self._accepted = _SERVER_MEMORY * self._accepted + was_accepted
        self._expected = _SERVER_MEMORY * self._expected + rate

    def forget(self) -> None:
        """Believe a little more in the draft again: a round did not use it."""
        self._accepted += (1 - _PATIENCE) * (_PRIOR_WEIGHT - self._accepted)
        self._expected += (1 - _PATIENCE) * (_PRIOR_WEIGHT - self._expected)


class RequestAcceptance:
    """The server's rates, times the level of one request's own text.

    Args:
        server: The server's.
    """

    def __init__(self, server: ServerAcceptance) -> None:
        self._server = server
        self._accepted, self._expected = _PRIOR_WEIGHT * server.level, _PRIOR_WEIGHT
        self._shares = server.shares.copy()

    @property
    def level(self) -> float:
        """Accepted over expected draft tokens, of which the latest count most."""
        return self._accepted / self._expected

    @property
    def mean(self) -> float:
        """Probability that the next draft token is accepted, before its gap is known."""
        return min(float(self._server.rates @ self._shares) * self.level, _CERTAIN)

    def rate(self, gap: float) -> float:
        """Return the probability that a draft token is accepted if those before it are."""
        return min(float(self._server.rates[bisect_right(GAP_EDGES, gap)]) * self.level, _CERTAIN)

    def observe(self, gaps: Sequence[float], num_accepted: int) -> None:
        """Learn from draft tokens, in order; what follows the first rejected one tells nothing."""
        for index, gap in enumerate(gaps[: num_accepted + 1]):
            gap_class = bisect_right(GAP_EDGES, gap)
            expected = float(self._server.rates[gap_class])
            self._server.observe(gap_class, self.level, was_accepted=index < num_accepted)
            self._add(index < num_accepted, expected)
            self._shares *= _SHARE_MEMORY
            self._shares[gap_class] += 1 - _SHARE_MEMORY

    def observe_unseen(self, num_drafted: int, num_accepted: int) -> None:
        """Learn from draft tokens whose gaps are not known."""
        expected = float(self._server.rates @ self._shares)
        for index in range(min(num_drafted, num_accepted + 1)):
            self._add(index < num_accepted, expected)

    def forget(self) -> None:
        """Move back to the server's level: a round did not draft."""
        self._accepted += (1 - _PATIENCE) * (_PRIOR_WEIGHT * self._server.level - self._accepted)
        self._expected += (1 - _PATIENCE) * (_PRIOR_WEIGHT - self._expected)
        self._server.forget()

    def _add(self, was_accepted: bool, expected: float) -> None:
        self._accepted = _REQUEST_MEMORY * self._accepted + was_accepted
        self._expected = _REQUEST_MEMORY * self._expected + expected
