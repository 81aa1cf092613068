"""Counts of one speculative answer and the rates defined on them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class SpeculationStatistics:
    """Counts that grow with every round.

    Attributes:
        num_rounds: Target passes, the first one (which reads the prompt) included.
        total_draft_tokens: Draft tokens that were verified.
        total_accepted_draft_tokens: Those of them that became output.
        accepted_per_position: Entry i counts the rounds in which draft position i became output.
    """

    max_draft_len: int
    num_rounds: int = 0
    num_drafting_rounds: int = 0
    total_draft_tokens: int = 0
    total_accepted_draft_tokens: int = 0
    accepted_per_position: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.accepted_per_position = [0] * self.max_draft_len

    def add_round(self, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """Count one target pass that verified ``num_draft_tokens`` and kept ``num_accepted_tokens``."""
        self.num_rounds += 1
        self.num_drafting_rounds += num_draft_tokens > 0
        self.total_draft_tokens += num_draft_tokens
        self.total_accepted_draft_tokens += num_accepted_tokens
        for position in range(num_accepted_tokens):
            self.accepted_per_position[position] += 1

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over drafted tokens; None if nothing was drafted."""
        if not self.total_draft_tokens:
            return None
        return self.total_accepted_draft_tokens / self.total_draft_tokens

    @property
    def mean_acceptance_length(self) -> float | None:
        """1 + accepted tokens per round that drafted; None if no round did."""
        if not self.num_drafting_rounds:
            return None
        return 1 + self.total_accepted_draft_tokens / self.num_drafting_rounds
