"""Measures rounds from outside and finds the best draft length from their times.

An engine that reports neither step times nor margins can still be timed: a token of the target alone, a
proposal, a verification. These times include everything: calls, queues and the effect of other requests.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median

# The median of this many counts, since the first calls of a server and occasional others are slow.
_NUM_ROUNDS = 5
_NUM_ALONE = 3


@dataclass(frozen=True)
class DraftChoice:
    """A draft length and its expected gain.

    Attributes:
        num_draft_tokens: Draft tokens per round, at least 1.
        gain: Expected throughput relative to the target alone.
    """

    num_draft_tokens: int
    gain: float


class RoundTimes:
    """The latest times at one load."""

    def __init__(self) -> None:
        self._alone_s: deque[float] = deque(maxlen=_NUM_ALONE)
        self._verifications_s: deque[float] = deque(maxlen=_NUM_ROUNDS)
        self._proposals: deque[tuple[int, float]] = deque(maxlen=_NUM_ROUNDS)

    @property
    def is_alone_known(self) -> bool:
        """Whether the target alone has been measured."""
        return bool(self._alone_s)

    def observe_alone(self, seconds_per_token: float) -> None:
        """Record the time per token of the target alone."""
        self._alone_s.append(seconds_per_token)

    def observe_round(self, num_draft_tokens: int, proposal_s: float, verification_s: float) -> None:
        """Record a drafting round."""
        self._proposals.append((num_draft_tokens, proposal_s))
        self._verifications_s.append(verification_s)

    def best(self, acceptance_rate: float, max_draft_len: int) -> DraftChoice | None:
        """Return the draft length with the highest throughput; None if too little is known.

        Args:
            acceptance_rate: Acceptance rate of a draft token, below 1.
            max_draft_len: Upper limit.
        """
        if not (self._alone_s and self._proposals):
            return None
        alone_s, verification_s = median(self._alone_s), median(self._verifications_s)
        # A verification is a step and a call; a token of the target alone is just a step.
        call_s = max(verification_s - alone_s, 0.0)
        step_s = median(max(seconds - call_s, 0.0) / count for count, seconds in self._proposals)
        gains = []
        num_tokens = accepted = 1.0
        for count in range(1, max_draft_len + 1):
            accepted *= acceptance_rate
            num_tokens += accepted
            gains.append(num_tokens * alone_s / (verification_s + call_s + count * step_s))
        gain = max(gains)
        return DraftChoice(gains.index(gain) + 1, gain)
