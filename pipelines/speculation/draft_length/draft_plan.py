"""Defines the plan of a round's draft and who decides it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pipelines.speculation.proposal import Proposal
from pipelines.speculation.request import Output
from pipelines.speculation.token_ids import NO_TOKENS, TokenIds

KeepDrafting = Callable[[float], bool]


@dataclass(frozen=True)
class DraftPlan:
    """Plan of one round's draft.

    Attributes:
        max_tokens: Maximum number of tokens from the draft model; 0 not to call it.
        keep_drafting: See ``GenerationRequest``; None to always draft ``max_tokens``.
        complete: Builds the proposal from the draft model's output, or from None if it was not called or
            failed.
    """

    max_tokens: int
    keep_drafting: KeepDrafting | None
    complete: Callable[[Output | None], Proposal]


class DraftLength(Protocol):
    """Decides the draft length of one request, round by round.

    Attributes:
        max_draft_len: Upper limit, also of tokens that a grammar forces.
    """

    max_draft_len: int

    def next_round(self, num_remaining: int) -> DraftPlan:
        """Return what to draft: fewer tokens than the ``num_remaining`` output tokens."""

    def num_alone(self, num_remaining: int) -> int:
        """Return the length of the target's stream when a round does not draft.

        The first round never drafts.
        """

    def note_refusal(self) -> None:
        """Do not ask the draft model again: it refuses this request. Other requests are not affected."""

    def observe(self, proposal: Proposal, token_ids: TokenIds) -> None:
        """Learn from a round: the draft tokens, verified or not, and the output."""

    def end(self) -> None:
        """Record that the request has ended."""


class FixedDraftLength:
    """Drafts the same number of tokens in every round, fewer near the end.

    Args:
        num_draft_tokens: Draft tokens per round, at least 0.
    """

    def __init__(self, num_draft_tokens: int) -> None:
        self.max_draft_len = num_draft_tokens
        self._num_draft_tokens = num_draft_tokens
        self._has_begun = False

    def next_round(self, num_remaining: int) -> DraftPlan:
        """Return the fixed length; limited, because a round of k draft tokens may return k + 1."""
        return all_of(min(self._num_draft_tokens, num_remaining - 1))

    def num_alone(self, num_remaining: int) -> int:
        """Return one token before the first draft; all remaining ones if the draft fails."""
        is_one = self._num_draft_tokens and not self._has_begun
        self._has_begun = True
        return 1 if is_one else num_remaining

    def note_refusal(self) -> None:
        """Draft no more."""
        self._num_draft_tokens = 0

    def observe(self, proposal: Proposal, token_ids: TokenIds) -> None:
        """Learn nothing."""

    def end(self) -> None:
        """Leave nothing behind."""


def all_of(num_draft_tokens: int) -> DraftPlan:
    """Return a plan that drafts this many tokens and verifies them all."""
    return DraftPlan(num_draft_tokens, None, _whole)


def _whole(drafted: Output | None) -> Proposal:
    return Proposal(NO_TOKENS if drafted is None else drafted.token_ids, drafted)


NO_DRAFT = all_of(0)
