"""Counts the rounds of speculative answers."""

from __future__ import annotations

from dataclasses import dataclass, field

from pipelines.speculation.loop import TOKEN_SOURCES, Round


@dataclass
class SpeculationStatistics:
    """Counts over rounds.

    Attributes:
        num_rounds: Target passes, including the first one, which reads the prompt.
        num_drafting_rounds: Rounds that verified draft tokens.
        total_draft_tokens: Verified draft tokens.
        total_accepted_draft_tokens: Accepted draft tokens.
        total_predicted_tokens: Verified draft tokens from clients' predictions.
        total_accepted_predicted_tokens: Accepted ones of these.
        accepted_per_position: Entry i counts the rounds that accepted draft position i.
        rounds_by_length: Entry i counts the rounds that verified i draft tokens.
        tokens_by_source: Output tokens by source, in the order of ``TOKEN_SOURCES``.
    """

    max_draft_len: int
    num_rounds: int = 0
    num_drafting_rounds: int = 0
    total_draft_tokens: int = 0
    total_accepted_draft_tokens: int = 0
    total_predicted_tokens: int = 0
    total_accepted_predicted_tokens: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    rounds_by_length: list[int] = field(default_factory=list)
    tokens_by_source: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.accepted_per_position = [0] * self.max_draft_len
        self.rounds_by_length = [0] * (self.max_draft_len + 1)
        self.tokens_by_source = dict.fromkeys(TOKEN_SOURCES, 0)

    def add_round(self, counted: Round) -> None:
        """Count one target pass."""
        num_accepted = counted.num_accepted_tokens
        self.num_rounds += 1
        self.num_drafting_rounds += counted.num_draft_tokens > 0
        self.total_draft_tokens += counted.num_draft_tokens
        self.total_accepted_draft_tokens += num_accepted
        self.total_predicted_tokens += counted.num_predicted
        self.total_accepted_predicted_tokens += counted.num_accepted_predicted
        self.rounds_by_length[counted.num_draft_tokens] += 1
        for source in counted.token_sources.tolist():
            self.tokens_by_source[TOKEN_SOURCES[source]] += 1
        for position in range(num_accepted):
            self.accepted_per_position[position] += 1
