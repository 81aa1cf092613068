"""Defines what a round drafts and the protocols that decide it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from pipelines.speculation.request import Output
from pipelines.speculation.token_ids import NO_TOKENS, TokenIds

KeepDrafting = Callable[[float], bool]


@dataclass(frozen=True)
class Proposal:
    """The draft tokens of a round.

    Attributes:
        token_ids: int32 [n], tokens to verify: forced ones, then those of the draft model or looked-up ones.
        drafted: Output of the draft model; None if it was not called or failed.
        num_forced: Number of leading tokens that the grammar forces.
        num_predicted: Number of last tokens that stand in the client's prediction.
    """

    token_ids: TokenIds
    drafted: Output | None
    num_forced: int = 0
    num_predicted: int = 0

    @property
    def num_by_model(self) -> int:
        """Number of tokens from the draft model."""
        if self.drafted is None:
            return 0
        return min(len(self.drafted.token_ids), len(self.token_ids) - self.num_forced)

    def behind(self, forced: TokenIds, max_draft_len: int) -> Proposal:
        """Return the draft model's tokens behind forced ones, int32 [n], at most ``max_draft_len`` in all.

        Looked-up tokens are left out: they would follow the known tokens.
        """
        if not len(forced):
            return self
        num_kept = min(self.num_by_model, max_draft_len - len(forced))
        token_ids = np.concatenate((forced, self.token_ids[:num_kept]))
        return Proposal(token_ids, self.drafted, len(forced))


@dataclass(frozen=True)
class DraftPlan:
    """Plan of one round's draft.

    Attributes:
        max_tokens: Maximum number of tokens from the draft model; 0 not to call it.
        keep_drafting: Returns ``GenerationRequest.keep_drafting``; None to always draft ``max_tokens``.
        complete: Builds the proposal from the draft model's output, or from None if it was not called or
            failed.
    """

    max_tokens: int
    keep_drafting: Callable[[], KeepDrafting | None]
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
    return DraftPlan(num_draft_tokens, lambda: None, _whole)


def _whole(drafted: Output | None) -> Proposal:
    return Proposal(NO_TOKENS if drafted is None else drafted.token_ids, drafted)


NO_DRAFT = all_of(0)
