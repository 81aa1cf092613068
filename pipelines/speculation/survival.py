"""How likely a draft token is to be accepted, told from how clearly the draft preferred it.

The margin is the gap between the best and the second best of the scores that the draft chose from, the
noise included. Target and draft choose under the same noise, so a token that won by a wide margin wins
with the target too unless the two models disagree by more than that: the margin predicts acceptance for
greedy and for sampled tokens alike, which the draft's probability of a sampled token does not
(docs/decisions/0013-draft-length.md).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

MARGIN_EDGES = (0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
"""Borders of the classes of margins, in nats."""

NUM_CLASSES = len(MARGIN_EDGES) + 1

_CLASS_MEMORY = 500.0  # observations after which a class has half forgotten its prior
_LEVEL_MEMORY = 0.97  # weight that an observation keeps for new requests when the next one comes
_LEAST_LEVEL = 0.1
_LEVEL_PRIOR = 10.0  # observations that the first ones are weighed against
_REQUEST_MEMORY = 0.93  # weight that an observation keeps when the next one comes
_SHARE_MEMORY = 0.97
_REQUEST_PRIOR = 3.0  # observations that the first ones are weighed against; forgotten like any other
_LEAST_RATE, _CERTAIN = 0.01, 0.995
_LATE_MEMORY = 0.75
_LEAST_VARIANCE = 0.1
_SURPRISE = 2.5  # standard deviations between late and long record that mean that the text has changed


class AcceptanceByMargin:
    """Acceptance rate of each class of margins, over all requests of a server.

    What margins tell is learnt apart from how well the texts of the moment suit the draft: requests that
    it cannot follow must not spoil what is known for those that it can.

    Args:
        rates: Prior, one rate per class; from the calibration of the pair.
        shares: Prior, how often each class occurs; sums to 1.
    """

    def __init__(self, rates: Sequence[float], shares: Sequence[float]) -> None:
        self.rates: npt.NDArray[np.float64] = np.array(rates, np.float64)
        self.shares: npt.NDArray[np.float64] = np.array(shares, np.float64)
        self._num_accepted = self._num_expected = _LEVEL_PRIOR

    @property
    def level(self) -> float:
        """Where a new request begins: accepted over expected tokens of the latest ones.

        Not nothing: a request that is taken for hopeless is slow to show that it is not.
        """
        return max(self._num_accepted / self._num_expected, _LEAST_LEVEL)

    def observe(self, margin_class: int, factor: float, *, was_accepted: bool) -> None:
        """Learn from one draft token that the target was asked about.

        Args:
            margin_class: Of the token.
            factor: How its request does against the rates.
            was_accepted: What the target said.
        """
        rate = float(self.rates[margin_class])
        self.observe_level(rate, was_accepted=was_accepted)
        error = was_accepted - min(rate * factor, _CERTAIN)
        self.rates[margin_class] = min(max(rate + error / _CLASS_MEMORY, _LEAST_RATE), 1.0)
        self.shares *= 1 - 1 / _CLASS_MEMORY
        self.shares[margin_class] += 1 / _CLASS_MEMORY

    def observe_level(self, rate: float, *, was_accepted: bool) -> None:
        """Learn where new requests begin, from a draft token of which ``rate`` was expected."""
        self._num_accepted = _LEVEL_MEMORY * self._num_accepted + was_accepted
        self._num_expected = _LEVEL_MEMORY * self._num_expected + rate


class RequestAcceptance:
    """The same for one request: the server's rates, scaled by how this request does against them.

    Attributes:
        shares: float64 [NUM_CLASSES], how often each class occurs in this request of late: text that repeats
            itself is drafted with wide margins for long, other text is not.

    Args:
        common: Of the server.
    """

    def __init__(self, common: AcceptanceByMargin) -> None:
        self._common = common
        self._num_accepted, self._num_expected = _REQUEST_PRIOR * common.level, _REQUEST_PRIOR
        self.shares = common.shares.copy()
        # The latest few observations, to notice a change of the text.
        self._late_accepted = self._late_expected = self._late_variance = 0.0

    @property
    def factor(self) -> float:
        """Accepted over expected tokens of late; at the beginning that of the latest requests."""
        return self._num_accepted / self._num_expected

    @property
    def rates(self) -> npt.NDArray[np.float64]:
        """float64 [NUM_CLASSES], acceptance of this request's draft tokens by class of margin."""
        return np.minimum(self._common.rates * self.factor, _CERTAIN)

    @property
    def mean_rate(self) -> float:
        """Acceptance of a draft token whose margin is not known yet."""
        return float(self.rates @ self.shares)

    def rate(self, margin: float) -> float:
        """Acceptance of a draft token with this margin, given that those before it are accepted."""
        return float(min(self._common.rates[class_of(margin)] * self.factor, _CERTAIN))

    def observe(self, margins: Iterable[float], num_accepted: int) -> None:
        """Learn from a verification.

        Args:
            margins: Of the verified draft tokens, in order.
            num_accepted: How many of them the target kept. Those after the first refused one tell nothing:
                the target was asked about them after a token that is not its own.
        """
        for index, margin in enumerate(margins):
            if index > num_accepted:
                return
            margin_class = class_of(margin)
            was_accepted = index < num_accepted
            expected = float(self._common.rates[margin_class])
            self._common.observe(margin_class, self.factor, was_accepted=was_accepted)
            self._add(was_accepted, expected)
            self.shares *= _SHARE_MEMORY
            self.shares[margin_class] += 1 - _SHARE_MEMORY

    def observe_unseen(self, num_compared: int, num_accepted: int) -> None:
        """Learn from draft tokens whose margins are not known."""
        mean = float(self._common.rates @ self._common.shares)
        for index in range(min(num_compared, num_accepted + 1)):
            self._add(index < num_accepted, mean)

    def _add(self, was_accepted: bool, expected: float) -> None:
        probability = min(expected * self.factor, _CERTAIN)
        self._late_accepted = _LATE_MEMORY * self._late_accepted + was_accepted
        self._late_expected = _LATE_MEMORY * self._late_expected + expected
        self._late_variance = _LATE_MEMORY**2 * self._late_variance + max(
            probability * (1 - probability), _LEAST_VARIANCE
        )
        surprise = abs(self._late_accepted - self.factor * self._late_expected)
        if surprise > _SURPRISE * self._late_variance**0.5:
            self._num_accepted, self._num_expected = self._late_accepted, self._late_expected
            return
        self._num_accepted = _REQUEST_MEMORY * self._num_accepted + was_accepted
        self._num_expected = _REQUEST_MEMORY * self._num_expected + expected


def class_of(margin: float) -> int:
    """Index of the class that a margin falls into."""
    return bisect_right(MARGIN_EDGES, margin)
