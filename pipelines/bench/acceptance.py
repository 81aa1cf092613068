"""What became of the draft tokens, over all answers of an arm."""

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
        num_rounds: Target passes; 0 for the target alone, which counts none.
        total_draft_tokens: Draft tokens proposed.
        total_accepted_draft_tokens: Those that the target accepted.
        accepted_per_position: Entry i: rounds in which draft position i was accepted.
        rounds_by_draft_length: Entry k: rounds that drafted k tokens, of those that the streams tell
            apart.
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
        """Entry n: rounds in which exactly n draft tokens were accepted."""
        reached = (self.num_rounds, *self.accepted_per_position, 0)
        return tuple(at_least - more for at_least, more in itertools.pairwise(reached))


def pooled(generations: Sequence[Generation]) -> Acceptance:
    """Add the counts of answers up."""
    per_position = itertools.zip_longest(*(each.accepted_per_position for each in generations), fillvalue=0)
    lengths = Counter(length for each in generations for length in each.draft_lengths)
    return Acceptance(
        num_rounds=sum(each.num_rounds for each in generations),
        total_draft_tokens=sum(each.total_draft_tokens for each in generations),
        total_accepted_draft_tokens=sum(each.total_accepted_draft_tokens for each in generations),
        accepted_per_position=tuple(sum(position) for position in per_position),
        rounds_by_draft_length=tuple(lengths[length] for length in range(max(lengths, default=-1) + 1)),
    )
