"""What rounds take where nothing but their time is known, and which draft length that makes the best.

An engine that says neither what its steps take nor how sure its tokens are can still be timed from outside:
a token of the target alone, a proposal, a verification. Those hold whatever there is besides steps: calls,
queues, what other requests do.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median

# Of so many the middle one counts: the first calls of a server are slow, and so is one now and then.
_NUM_ROUNDS = 5
_NUM_ALONE = 3


@dataclass(frozen=True)
class DraftChoice:
    """A draft length and what it promises.

    Attributes:
        num_draft_tokens: At least 1.
        gain: Output tokens per second with it, over those of the target alone.
    """

    num_draft_tokens: int
    gain: float


class RoundTimes:
    """Times at one load, the latest ones."""

    def __init__(self) -> None:
        self._alone_s: deque[float] = deque(maxlen=_NUM_ALONE)
        self._verifications_s: deque[float] = deque(maxlen=_NUM_ROUNDS)
        self._proposals: deque[tuple[int, float]] = deque(maxlen=_NUM_ROUNDS)

    @property
    def is_alone_known(self) -> bool:
        """Whether tokens of the target alone were timed."""
        return bool(self._alone_s)

    def observe_alone(self, seconds_per_token: float) -> None:
        """Learn from tokens that the target gave one after the other."""
        self._alone_s.append(seconds_per_token)

    def observe_round(self, num_draft_tokens: int, proposal_s: float, verification_s: float) -> None:
        """Learn from a round that drafted."""
        self._proposals.append((num_draft_tokens, proposal_s))
        self._verifications_s.append(verification_s)

    def best(self, acceptance_rate: float, max_draft_len: int) -> DraftChoice | None:
        """The length that makes the most output tokens per second; None if too little is known.

        Args:
            acceptance_rate: Of each draft token, below 1.
            max_draft_len: Ceiling.
        """
        if not (self._alone_s and self._proposals):
            return None
        alone_s, verification_s = median(self._alone_s), median(self._verifications_s)
        # A verification is one step and a call, a token of the target alone just the step.
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
