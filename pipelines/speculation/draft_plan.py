"""What a round drafts, and who decides it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from pipelines.speculation.request import Output
from pipelines.speculation.token_ids import NO_TOKENS, TokenIds

KeepDrafting = Callable[[float], bool]


@dataclass(frozen=True)
class DraftPlan:
    """What to draft in a round.

    Attributes:
        ready_ids: int32 [n], draft tokens that are there without the draft model.
        max_tokens: Tokens to ask the draft model for, at most; 0 not to ask it.
        keep_drafting: Makes ``GenerationRequest.keep_drafting``; gives None to draft ``max_tokens``.
        num_to_verify: How many leading tokens of the model's proposal the target is asked about.
    """

    ready_ids: TokenIds
    max_tokens: int
    keep_drafting: Callable[[], KeepDrafting | None]
    num_to_verify: Callable[[Output], int]


@dataclass(frozen=True)
class Proposal:
    """What a round drafted.

    Attributes:
        token_ids: int32 [n], all of it; the target was asked about the first ``num_verified``.
        num_ready: How many of them came without the draft model.
        drafted: The draft model's part; None if it was not asked.
    """

    token_ids: TokenIds
    num_verified: int
    num_ready: int
    drafted: Output | None

    @classmethod
    def of(cls, plan: DraftPlan, drafted: Output | None) -> Proposal:
        """Put the parts together."""
        ready = plan.ready_ids
        if drafted is None:
            return cls(ready, len(ready), len(ready), None)
        token_ids = np.concatenate((ready, drafted.token_ids))
        return cls(token_ids, len(ready) + plan.num_to_verify(drafted), len(ready), drafted)


class DraftLength(Protocol):
    """Decides for one request, round by round."""

    def next_round(self, num_remaining: int) -> DraftPlan:
        """What to draft, when ``num_remaining`` output tokens are still wanted: fewer than that."""

    def observe(self, proposal: Proposal, token_ids: TokenIds) -> None:
        """Learn from a round: what was drafted, verified or not, and what became output."""


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

    def observe(self, proposal: Proposal, token_ids: TokenIds) -> None:
        """Learn nothing."""


def all_of(num_draft_tokens: int) -> DraftPlan:
    """Ask the draft model for so many tokens and verify them all."""
    return DraftPlan(NO_TOKENS, num_draft_tokens, lambda: None, lambda drafted: len(drafted.token_ids))


NO_DRAFT = all_of(0)
