"""Decides how many tokens one request drafts in each round, and learns from what became of them.

Before its first token a draft reads the whole prompt. For 32,000 tokens that takes longer than a short answer
could ever save, so such a request looks drafts up instead, until its answer is long enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pipelines.speculation.draft_length.draft_plan import NO_DRAFT, DraftPlan, KeepDrafting, Proposal, all_of
from pipelines.speculation.draft_length.survival import RequestAcceptance
from pipelines.speculation.lookup.lookup_draft import LookupDraft
from pipelines.speculation.request import Output
from pipelines.speculation.token_ids import NO_TOKENS, TokenIds, count_accepted

if TYPE_CHECKING:  # the controller makes the requests
    from pipelines.speculation.draft_length.adaptive import DraftLengths


# Largest share that reading may take of the time in which the target alone would write the rest of an answer.
_READING_SHARE, _TRIAL_SHARE = 0.2, 0.02
# The rest is expected to be as long as the answer so far, and at least some tokens.
_LEAST_REST = 64


_TELLING_RATE = 0.7  # of lookups: below it, those that are right by chance would cause too many decisions
_SMALL = 0.001


class RequestDraftLength:
    """Decides the draft length of one request, round by round.

    Attributes:
        acceptance: Acceptance of the draft model's tokens.
        lookup: Continuations found in the prediction, the request's text and earlier answers.
        is_refused: Whether the draft model refuses the request, which then only looks drafts up.
        num_tokens: Tokens of prompt and output so far.
        num_read: Leading tokens that the draft has read.

    Args:
        lengths: The controller.
        prompt_ids: int32 [n], the prompt.
        acceptance: Rates from earlier requests; None for new ones.
        earlier_ids: int32 [n], earlier answers.
        prediction_ids: int32 [n], what the client expects as the answer.
        sees_margins: See ``DraftLengths.begin``.
    """

    def __init__(
        self,
        lengths: DraftLengths,
        prompt_ids: TokenIds,
        acceptance: RequestAcceptance | None,
        earlier_ids: TokenIds,
        prediction_ids: TokenIds,
        *,
        sees_margins: bool,
    ) -> None:
        self.acceptance = acceptance or RequestAcceptance(lengths.acceptance)
        self.lookup = (
            LookupDraft(np.concatenate((earlier_ids, prompt_ids)), prediction_ids)
            if sees_margins
            else LookupDraft(NO_TOKENS)
        )
        self.max_draft_len = lengths.max_draft_len
        self.num_tokens = self._num_prompt = len(prompt_ids)
        self.num_read = lengths.count_read(prompt_ids)
        self._lengths = lengths
        self._sees_margins = sees_margins
        self._is_off = False
        self.is_refused = False
        self._used_lookup = False

    @property
    def only_looks_up(self) -> bool:
        """Whether the draft model refuses the request, or would take too long to read it."""
        return self.is_refused or not self._is_worth_reading(_READING_SHARE)

    @property
    def uses_lookup(self) -> bool:
        """Whether the next round looks its draft up: that promises more than the draft model."""
        return self.only_looks_up or self.lookup.rate > self.acceptance.mean_rate

    def next_round(self, num_remaining: int) -> DraftPlan:
        """Return what to draft in the next round."""
        if self._lengths.has_news and self.uses_lookup != self._used_lookup:
            self._used_lookup = not self._used_lookup
            self._lengths.note_switch()
        threshold = self._lengths.next_threshold(self)
        limit = min(self._lengths.max_draft_len, num_remaining - 1)
        self._is_off = not self._lengths.is_on
        if limit < 1:
            return NO_DRAFT
        if self._is_off:
            return self._probe()
        if not self._sees_margins:
            if self.only_looks_up:
                return NO_DRAFT
            return all_of(min(limit, _num_above(threshold, self.acceptance.mean_rate)))
        num_by_model = 0 if self.uses_lookup else min(limit, self._lengths.depth)
        return DraftPlan(
            num_by_model, lambda: self._above(threshold), lambda drafted: self._complete(drafted, limit)
        )

    def num_alone(self, num_remaining: int) -> int:
        """Return all remaining tokens: the stream is closed as soon as drafting pays."""
        return num_remaining

    def note_refusal(self) -> None:
        """Only look drafts up from now on: the draft model refuses this request."""
        self.is_refused = True
        self._lengths.note_change()

    def observe(self, proposal: Proposal, token_ids: TokenIds) -> None:
        """Learn from a round, including from draft tokens that were not verified."""
        if self._sees_margins:  # otherwise nothing is looked up, so a match must not count
            is_telling = self._is_off and self.lookup.rate > _TELLING_RATE
            if is_telling and count_accepted(self.lookup.propose(1).token_ids, token_ids):
                self._lengths.probing.note_lookup()
            self.lookup.append(token_ids)
        num_known = self.num_tokens
        self.num_tokens += len(token_ids)
        drafted = proposal.drafted
        if drafted is None:
            return
        self.num_read = num_known
        token_ids = token_ids[proposal.num_forced :]
        num_accepted = count_accepted(drafted.token_ids, token_ids)
        if self._is_off:
            self._lengths.probing.note(was_right=num_accepted > 0)
        if drafted.margins is not None:
            self.acceptance.observe(drafted.margins[: len(token_ids)].tolist(), num_accepted)
        else:
            self.acceptance.observe_unseen(min(len(drafted.token_ids), len(token_ids)), num_accepted)

    def end(self) -> None:
        """Record that the request has ended."""
        self._lengths.end(self)

    def _is_worth_reading(self, share: float) -> bool:
        """Whether reading takes at most a share of the time for the expected rest of the answer."""
        num_rest = max(self.num_tokens - self._num_prompt, _LEAST_REST)
        rest_s = num_rest * float(self._lengths.target_costs.seconds(2, self.num_tokens))
        return self._lengths.draft_costs.reading_s(self.num_read, self.num_tokens) <= share * rest_s

    def _probe(self) -> DraftPlan:
        """Draft one token, which is compared with the output instead of being verified."""
        if self.is_refused or not self._lengths.is_probed(self):
            return NO_DRAFT
        if not self._is_worth_reading(_TRIAL_SHARE):
            return NO_DRAFT
        if not self._sees_margins:
            return all_of(1)
        return DraftPlan(1, lambda: lambda margin: False, lambda drafted: Proposal(NO_TOKENS, None, drafted))

    def _above(self, threshold: float) -> KeepDrafting:
        survival = 1.0
        mean_rate = self.acceptance.mean_rate

        def keep_drafting(margin: float) -> bool:
            nonlocal survival
            survival *= self.acceptance.rate(margin)
            return survival * mean_rate >= threshold

        return keep_drafting

    def _complete(self, drafted: Output | None, limit: int) -> Proposal:
        """Append looked-up tokens to those of the draft model; they cost nothing until they are verified."""
        token_ids, survival = NO_TOKENS, np.ones(0)
        if drafted is not None:
            assert drafted.margins is not None
            token_ids = drafted.token_ids
            survival = np.cumprod([self.acceptance.rate(margin) for margin in drafted.margins.tolist()])
            if len(token_ids) == limit or drafted.finish_reason == "stop":
                return Proposal(token_ids, survival, drafted)
        if len(token_ids):
            found = self.lookup.propose_after(token_ids, limit - len(token_ids))
        else:  # a draft may have none of the tokens that a grammar allows
            found = self.lookup.propose(limit)
        further = survival[-1:].prod() * found.rate ** np.arange(1, len(found.token_ids) + 1)
        return Proposal(
            np.concatenate((token_ids, found.token_ids)),
            np.concatenate((survival, further)),
            drafted,
            num_predicted=len(found.token_ids) if found.is_predicted else 0,
        )


def _num_above(threshold: float, rate: float) -> int:
    """Return how many draft tokens are all accepted with a probability above the threshold."""
    if rate <= 0:
        return 0
    return int(np.log(max(threshold, _SMALL)) / np.log(min(rate, 1 - _SMALL)))
