"""Count accepted and rejected draft tokens over all answers of an arm."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.client import Generation


@dataclass(frozen=True)
class Acceptance:
    """Counts over all rounds.

    Attributes:
        num_rounds: Number of target passes; 0 for the target alone, which does not count them.
        total_draft_tokens: Number of proposed draft tokens.
        total_accepted_draft_tokens: Number of accepted draft tokens.
        accepted_per_position: Entry i: number of rounds that accepted draft position i.
        rounds_by_draft_length: Entry k: number of rounds that drafted k tokens.
    """

    num_rounds: int
    total_draft_tokens: int
    total_accepted_draft_tokens: int
    accepted_per_position: tuple[int, ...]
    rounds_by_draft_length: tuple[int, ...]

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted; None if nothing was drafted."""
        return self.total_accepted_draft_tokens / self.total_draft_tokens if self.total_draft_tokens else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """1 + accepted / rounds; None if no round was counted."""
        return 1 + self.total_accepted_draft_tokens / self.num_rounds if self.num_rounds else None

    @property
    def mean_draft_length(self) -> float | None:
        """Drafted / rounds; None if no round was counted."""
        return self.total_draft_tokens / self.num_rounds if self.num_rounds else None

    @property
    def rounds_by_accepted(self) -> tuple[int, ...]:
        """Entry n: number of rounds that accepted exactly n draft tokens."""
        reached = (self.num_rounds, *self.accepted_per_position, 0)
        return tuple(at_least - more for at_least, more in itertools.pairwise(reached))


def pooled(generations: Sequence[Generation]) -> Acceptance:
    """Add up the counts of answers."""
    per_position = itertools.zip_longest(*(each.accepted_per_position for each in generations), fillvalue=0)
    lengths = Counter(length for each in generations for length in each.drafted_per_round)
    return Acceptance(
        num_rounds=sum(each.num_rounds for each in generations),
        total_draft_tokens=sum(each.total_draft_tokens for each in generations),
        total_accepted_draft_tokens=sum(each.total_accepted_draft_tokens for each in generations),
        accepted_per_position=tuple(sum(position) for position in per_position),
        rounds_by_draft_length=tuple(lengths[length] for length in range(max(lengths, default=-1) + 1)),
    )
