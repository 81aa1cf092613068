"""Predicts the acceptance of a draft token from its margin.

The margin is the gap between the best and the second best score of the draft, including noise. Target and
draft use the same noise, so a token with a wide margin also wins with the target unless the two models
disagree by more than that. So the margin predicts acceptance for greedy and for sampled tokens, which the
draft's probability of a sampled token does not (docs/decisions/draft-length.md).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

MARGIN_EDGES = (0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
"""Bounds of the classes of margins, in nats."""

NUM_CLASSES = len(MARGIN_EDGES) + 1

_CLASS_MEMORY = 500.0  # time constant of a class, in observations
_LEVEL_MEMORY = 0.97  # decay per observation of the level for new requests
_LEAST_LEVEL = 0.1
_LEVEL_PRIOR = 10.0  # weight of the prior, in observations
_REQUEST_MEMORY = 0.93  # decay per observation of a request
_SHARE_MEMORY = 0.97
_REQUEST_PRIOR = 3.0  # weight of the prior, in observations; decays like them
_LEAST_RATE, _CERTAIN = 0.01, 0.995
_LATE_MEMORY = 0.75
_LEAST_VARIANCE = 0.1
_CHANGE_PRIOR = 0.5  # weight of the level of new requests after a change of the text, in observations
_SURPRISE = 2.5  # standard deviations between recent and long history that indicate a change of the text


class AcceptanceByMargin:
    """Acceptance rates by class of margin over all requests of a server.

    The rates are learned relative to each request's own level, so that requests with text that the draft
    cannot predict do not distort them for other requests.

    Args:
        rates: Prior rate of each class, from the calibration of the pair.
        shares: Prior frequency of each class; they sum to 1.
    """

    def __init__(self, rates: Sequence[float], shares: Sequence[float]) -> None:
        self.rates: npt.NDArray[np.float64] = np.array(rates, np.float64)
        self.shares: npt.NDArray[np.float64] = np.array(shares, np.float64)
        self._num_accepted = self._num_expected = _LEVEL_PRIOR

    @property
    def level(self) -> float:
        """Initial level of a new request: accepted over expected tokens of the latest requests.

        It has a lower bound, because a request that is assumed to be hopeless gets few chances to prove
        otherwise.
        """
        return max(self._num_accepted / self._num_expected, _LEAST_LEVEL)

    def observe(self, margin_class: int, factor: float, *, was_accepted: bool) -> None:
        """Learn from a verified draft token.

        Args:
            margin_class: Class of the token's margin.
            factor: Level of its request relative to the rates.
            was_accepted: Whether the target accepted it.
        """
        rate = float(self.rates[margin_class])
        self._num_accepted = _LEVEL_MEMORY * self._num_accepted + was_accepted
        self._num_expected = _LEVEL_MEMORY * self._num_expected + rate
        error = was_accepted - min(rate * factor, _CERTAIN)
        self.rates[margin_class] = min(max(rate + error / _CLASS_MEMORY, _LEAST_RATE), 1.0)
        self.shares *= 1 - 1 / _CLASS_MEMORY
        self.shares[margin_class] += 1 / _CLASS_MEMORY


class RequestAcceptance:
    """Acceptance rates of one request: the server's rates, scaled by the request's own level.

    Attributes:
        shares: float64 [NUM_CLASSES], recent frequency of each class in this request: repetitive text has
            wide margins for long stretches.

    Args:
        common: Rates of the server.
    """

    def __init__(self, common: AcceptanceByMargin) -> None:
        self._common = common
        self._num_accepted, self._num_expected = _REQUEST_PRIOR * common.level, _REQUEST_PRIOR
        self.shares = common.shares.copy()
        # The latest few observations, to notice a change of the text.
        self._late_accepted = self._late_expected = self._late_variance = 0.0

    @property
    def factor(self) -> float:
        """Recently accepted over expected tokens; initially the level of the latest requests."""
        return self._num_accepted / self._num_expected

    @property
    def rates(self) -> npt.NDArray[np.float64]:
        """Acceptance rates of this request by class of margin, float64 [NUM_CLASSES]."""
        return np.minimum(self._common.rates * self.factor, _CERTAIN)

    @property
    def mean_rate(self) -> float:
        """Acceptance rate of a draft token with unknown margin."""
        return float(self.rates @ self.shares)

    def rate(self, margin: float) -> float:
        """Return the acceptance rate of a token by its margin, given that those before it are accepted."""
        return float(min(self._common.rates[class_of(margin)] * self.factor, _CERTAIN))

    def observe(self, margins: Iterable[float], num_accepted: int) -> None:
        """Learn from a verification.

        Args:
            margins: Margins of the verified draft tokens, in order.
            num_accepted: Number of accepted tokens. Those after the first rejected one are ignored, because
                the target evaluated them after a token that is not its own.
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
        """Learn from draft tokens with unknown margins."""
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
            # Otherwise a single accepted token would make the factor 1 / its expected rate.
            self._num_accepted = self._late_accepted + _CHANGE_PRIOR * self._common.level
            self._num_expected = self._late_expected + _CHANGE_PRIOR
            return
        self._num_accepted = _REQUEST_MEMORY * self._num_accepted + was_accepted
        self._num_expected = _REQUEST_MEMORY * self._num_expected + expected


def class_of(margin: float) -> int:
    """Return the class of a margin."""
    return bisect_right(MARGIN_EDGES, margin)


def sample_survival(
    requests: Sequence[RequestAcceptance], num_cases: int, num_positions: int
) -> npt.NDArray[np.float64]:
    """Return the probability that all draft tokens up to a position are accepted, for sampled margins.

    Args:
        requests: Acceptance rates of each request.
        num_cases: Samples per request.
        num_positions: Draft tokens per sample.

    Returns:
        float64 [requests, cases, positions].
    """
    cases = _even_cases(num_cases, num_positions)
    borders = np.cumsum([request.shares for request in requests], axis=1)[:, :-1, np.newaxis]
    classes = (borders < cases.reshape(-1)).sum(axis=1)
    rates = np.stack([request.rates for request in requests])
    by_case = np.take_along_axis(rates, classes, axis=1).reshape(len(requests), *cases.shape)
    survival: npt.NDArray[np.float64] = np.cumprod(by_case, axis=2)
    return survival


@cache
def _even_cases(num_cases: int, num_positions: int) -> npt.NDArray[np.float64]:
    """Return float64 [num_cases, num_positions] in (0, 1): evenly spread columns in random order.

    The result is always the same, so that decisions do not flicker.
    """
    rng = np.random.default_rng(0)
    even = (np.arange(num_cases) + 0.5) / num_cases
    return np.stack([rng.permutation(even) for _ in range(num_positions)], axis=1)
