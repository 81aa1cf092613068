"""What a round drafts, and who decides it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pipelines.speculation.request import Output
from pipelines.speculation.survival import AcceptanceByMargin, RequestAcceptance
from pipelines.speculation.token_ids import NO_TOKENS, TokenIds

KeepDrafting = Callable[[float], bool]


@dataclass(frozen=True)
class Proposal:
    """What a round drafted.

    Attributes:
        token_ids: int32 [n], to be verified: the draft model's tokens, then those that came without it.
        survival: float64 [n], not rising: the probability that each becomes output, by which the target
            chooses what to verify; None to have all verified.
        drafted: What the draft model gave; None if it was not asked, or failed.
    """

    token_ids: TokenIds
    survival: npt.NDArray[np.float64] | None
    drafted: Output | None

    @property
    def num_by_model(self) -> int:
        """How many leading tokens are the draft model's."""
        return 0 if self.drafted is None else len(self.drafted.token_ids)


@dataclass(frozen=True)
class DraftPlan:
    """What to draft in a round.

    Attributes:
        max_tokens: Tokens to ask the draft model for, at most; 0 not to ask it.
        keep_drafting: Makes ``GenerationRequest.keep_drafting``; gives None to draft ``max_tokens``.
        complete: Makes the proposal of what the model drafted; None if it was not asked, or failed.
    """

    max_tokens: int
    keep_drafting: Callable[[], KeepDrafting | None]
    complete: Callable[[Output | None], Proposal]


class DraftLength(Protocol):
    """Decides for one request, round by round."""

    def next_round(self, num_remaining: int) -> DraftPlan:
        """What to draft, when ``num_remaining`` output tokens are still wanted: fewer than that."""

    def num_alone(self, num_remaining: int) -> int:
        """Tokens that an answer of the target is asked for that begins because nothing was drafted.

        The first round is one: it never drafts.
        """

    def observe(self, proposal: Proposal, token_ids: TokenIds) -> None:
        """Learn from a round: what was drafted, verified or not, and what became output."""


class DraftLengthController(Protocol):
    """Decides for all requests of a server; one for each way that there is to know what drafting is worth.

    Attributes:
        max_draft_len: Ceiling.
        acceptance: Of the pair.
        threshold: Probability above which draft tokens are worth their cost now; above 1: none is.
    """

    max_draft_len: int
    acceptance: AcceptanceByMargin
    threshold: float

    def begin(self, prompt_ids: TokenIds, acceptance: RequestAcceptance, *, sees_margins: bool) -> Any:
        """A ``DraftLength`` for a request, which is taken into account until ``end``."""

    def end(self, request: Any) -> None:
        """Forget a request."""


class FixedDraftLength:
    """Drafts the same number in every round, fewer near the end.

    Args:
        num_draft_tokens: At least 0.
    """

    def __init__(self, num_draft_tokens: int) -> None:
        self._num_draft_tokens = num_draft_tokens
        self._has_begun = False

    def next_round(self, num_remaining: int) -> DraftPlan:
        """As many as always: a round of k draft tokens may give k + 1."""
        return all_of(min(self._num_draft_tokens, num_remaining - 1))

    def num_alone(self, num_remaining: int) -> int:
        """One token before the first draft; all, until it answers again, of a draft that fails."""
        is_one = self._num_draft_tokens and not self._has_begun
        self._has_begun = True
        return 1 if is_one else num_remaining

    def observe(self, proposal: Proposal, token_ids: TokenIds) -> None:
        """Learn nothing."""


def all_of(num_draft_tokens: int) -> DraftPlan:
    """Ask the draft model for so many tokens and verify them all."""
    return DraftPlan(num_draft_tokens, lambda: None, _whole)


def _whole(drafted: Output | None) -> Proposal:
    return Proposal(NO_TOKENS if drafted is None else drafted.token_ids, None, drafted)


NO_DRAFT = all_of(0)
