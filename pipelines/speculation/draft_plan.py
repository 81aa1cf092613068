"""What a round drafts, and who decides it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pipelines.errors import DraftproofError
from pipelines.speculation.request import Output
from pipelines.speculation.token_ids import TokenIds

KeepDrafting = Callable[[float], bool]


@dataclass(frozen=True)
class DraftPlan:
    """What to draft in a round.

    Attributes:
        max_tokens: Draft tokens at most; 0 for none.
        keep_drafting: Makes ``GenerationRequest.keep_drafting``; gives None to draft ``max_tokens``.
        num_to_verify: How many leading tokens of a proposal the target is asked about.
    """

    max_tokens: int
    keep_drafting: Callable[[], KeepDrafting | None]
    num_to_verify: Callable[[Output], int]


class DraftLength(Protocol):
    """Decides for one request, round by round."""

    def next_round(self, num_remaining: int) -> DraftPlan:
        """What to draft, when ``num_remaining`` output tokens are still wanted: fewer than that."""

    def observe(self, proposal: Output, token_ids: TokenIds) -> None:
        """Learn from a round: what was drafted, verified or not, and what became output."""

    def draft_failed(self, error: DraftproofError) -> None:
        """Note that the draft did not answer; the round goes on without it."""


class FixedDraftLength:
    """Drafts the same number in every round, fewer near the end.

    Args:
        num_draft_tokens: At least 0.
    """

    def __init__(self, num_draft_tokens: int) -> None:
        self._num_draft_tokens = num_draft_tokens

    def next_round(self, num_remaining: int) -> DraftPlan:
        """As many as always: a round of k draft tokens may give k + 1."""
        return all_of(min(self._num_draft_tokens, num_remaining - 1))

    def observe(self, proposal: Output, token_ids: TokenIds) -> None:
        """Learn nothing."""

    def draft_failed(self, error: DraftproofError) -> None:
        """Try again in the next round."""


def all_of(num_draft_tokens: int) -> DraftPlan:
    """Draft so many tokens and verify them all."""
    return DraftPlan(num_draft_tokens, lambda: None, lambda proposal: len(proposal.token_ids))


NO_DRAFT = all_of(0)
