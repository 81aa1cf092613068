"""Adapts the draft length of each request in each round to maximise the server's throughput.

The output does not depend on the draft length (with the coupled rule not even on which drafts are kept), so
the length can follow acceptance and load. All requests share one step of the target, whose time grows with
its rows and their contexts. A draft token is worth the probability that it becomes output, that is, that it
and those before it are accepted; their margins predict this (``survival.py``). The controller predicts the
draft tokens of all requests, ranks them by that probability, and verifies as many of the best as maximise
output tokens per second (``goodput.py``). The probability of the last of them is the threshold: requests
draft as long as they are above it. Which drafted tokens then get a row is decided for each step
(``executor/rows/budget.py``).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pipelines.speculation.acceptance import count_accepted
from pipelines.speculation.draft_length.draft_plan import NO_DRAFT, DraftPlan, KeepDrafting, Proposal, all_of
from pipelines.speculation.draft_length.goodput import Probabilities, Prospect, best_draft
from pipelines.speculation.draft_length.probing import Probing
from pipelines.speculation.draft_length.step_costs import StepCosts
from pipelines.speculation.draft_length.survival import (
    AcceptanceByMargin,
    RequestAcceptance,
    sample_survival,
)
from pipelines.speculation.draft_length.unread import READING_SHARE, TRIAL_SHARE, UnreadText
from pipelines.speculation.lookup.corpus import Corpus
from pipelines.speculation.lookup.lookup_draft import LookupDraft
from pipelines.speculation.request import Output
from pipelines.speculation.token_ids import NO_TOKENS, TokenIds

# Expected gain that speculation needs to start and to continue. Above 0, because the model leaves out some
# costs, such as changes of shape, and because the best of many estimates is too optimistic.
_GAIN_TO_BEGIN, _GAIN_TO_GO_ON = 0.03, 0.01
_CLEAR_GAIN = 0.2  # with which speculation begins even if it has just failed to pay
_DECISION_INTERVAL = 3  # rounds
# If the gain may be an error of the cost model, the target answers alone for some rounds, so that the time of
# its steps is known, too. A gain of more than two deviations counts as real; a small deviation never matters.
_CHECK_ROUNDS, _NUM_DEVIATIONS, _SMALL_DEVIATION = 6, 2.0, 0.03
_NEVER = 2.0  # above every probability
_TELLING_RATE = 0.7  # of lookups: below it, those that are right by chance would cause too many decisions
_SMALL = 0.001
# Number of sampled margins, and of draft tokens considered per request: fewer with more requests, since the
# engines wait for each decision. More rows than these hardly ever pay.
_NUM_CASES, _LEAST_CASES = 32, 8
_NUM_ROWS, _LEAST_POSITIONS = 96, 4


class DraftLengths:
    """Controls the draft lengths of all requests of a server.

    Attributes:
        threshold: Probability of becoming output above which a draft token is worth its cost.
        depth: Maximum number of draft tokens per request; the draft steps all requests together.
        tokens_per_s: Expected throughput in output tokens per second.
        probing: Schedules trials at the current load while speculation does not pay.
        count_read: Returns how many leading tokens of a prompt the draft need not read again.
        corpus: Returns the texts in which the drafts of a new request are looked up; None for none.

    Args:
        acceptance: Acceptance rates of the pair by margin.
        draft_costs: Step costs of the draft.
        target_costs: Step costs of the target.
        max_draft_len: Upper limit.
    """

    def __init__(
        self,
        acceptance: AcceptanceByMargin,
        draft_costs: StepCosts,
        target_costs: StepCosts,
        max_draft_len: int,
    ) -> None:
        self.acceptance = acceptance
        self.max_draft_len = max_draft_len
        self.threshold = _NEVER
        self.depth = max_draft_len
        self.tokens_per_s = 1 / float(target_costs.seconds(2))
        self._draft_costs = draft_costs
        self._target_costs = target_costs
        self._requests: set[RequestDraftLength] = set()
        self._num_calls_left = self._num_rounds_left = 0
        self._probing_by_load = {0: Probing()}
        self.probing = self._probing_by_load[0]
        self._gain = 0.0
        self.count_read: Callable[[TokenIds], int] = lambda token_ids: 0
        self.corpus: Callable[[], Corpus | None] = lambda: None
        self._is_new = True
        self._is_checking = False
        self._num_begun = 0

    @property
    def is_on(self) -> bool:
        """Whether requests draft at present."""
        return self.threshold != _NEVER

    @property
    def has_news(self) -> bool:
        """Whether there may be something to decide: while speculation is off, only now and then."""
        return self.is_on or self._is_new or self._is_checking or self.probing.has_news

    def begin(
        self,
        prompt_ids: TokenIds,
        acceptance: RequestAcceptance | None = None,
        earlier_ids: TokenIds = NO_TOKENS,
        *,
        sees_margins: bool = True,
    ) -> RequestDraftLength:
        """Add a request until ``end``.

        Args:
            prompt_ids: int32 [n], searched for continuations.
            acceptance: Acceptance rates from earlier requests of the session.
            earlier_ids: int32 [n], answers of the session, searched as well.
            sees_margins: Whether lengths may depend on the margins of the tokens. With the ratio rule they
                must not: leaving out tokens of which the draft was unsure would change the distribution.
        """
        request = RequestDraftLength(
            self, self._num_begun, prompt_ids, acceptance, earlier_ids, sees_margins=sees_margins
        )
        self._num_begun += 1
        self._requests.add(request)
        self.note_change()
        return request

    def end(self, request: RequestDraftLength) -> None:
        """Remove a request."""
        self._requests.discard(request)
        self.note_change()
        if not self._requests:
            self._stop()
            self.probing.resume()

    def note_change(self) -> None:
        """Decide anew soon: a request has begun or ended, or the draft model refuses it."""
        self._num_calls_left = 0
        self._is_new = True
        if self.is_on:  # otherwise the decision can wait for a few rounds
            self._num_rounds_left = 0

    def note_switch(self) -> None:
        """Decide anew before the next round: a request begins or ceases to look its drafts up."""
        if not self._is_checking:
            self._num_rounds_left = 0

    def next_threshold(self) -> float:
        """Return the threshold for a request's next round.

        All requests call this once between two steps of the target, so a round is as many calls as there are
        requests. The threshold is updated when a request begins or ends, and every few rounds.
        """
        if self._num_calls_left <= 0:
            self._begin_round()
        self._num_calls_left -= 1
        return self.threshold

    def _begin_round(self) -> None:
        self._num_calls_left = len(self._requests)
        self._num_rounds_left -= 1
        self._follow_load()
        if self.has_news and self._num_rounds_left <= 0:
            self._is_new = False
            self._num_rounds_left = _DECISION_INTERVAL
            self._decide()
        is_trying = self.is_on or self._is_checking
        self.probing.begin_round(is_trying=is_trying, gain=self._gain if self.is_on else 0.0)

    def _follow_load(self) -> None:
        """Use the schedule of this load: one request, two or three, four to seven, and so on."""
        probing = self._probing_by_load.setdefault(len(self._requests).bit_length(), Probing())
        if probing is not self.probing:
            self.probing = probing
            probing.resume()
            if self._is_checking:
                self._num_rounds_left = 0

    def _decide(self) -> None:
        requests = list(self._requests)
        prospect = Prospect(
            survival=self._survival(requests),
            mean_rates=np.array([request.acceptance.mean_rate for request in requests]),
            uses_draft=np.array([not request.uses_lookup for request in requests]),
            mean_context=float(np.mean([request.text.num_tokens for request in requests])),
        )
        best = best_draft(prospect, self._draft_costs, self._target_costs)
        self._gain = best.tokens_per_s / best.without - 1
        if self.probing.was_trying:
            least_gain = _GAIN_TO_GO_ON
        else:
            least_gain = _GAIN_TO_BEGIN if self.probing.may_begin else _CLEAR_GAIN
        deviation = self._target_costs.deviation(best.num_rows, len(requests), prospect.mean_context)
        is_doubtful = deviation > max(_SMALL_DEVIATION, self._gain / _NUM_DEVIATIONS)
        must_check = self.is_on and self.probing.was_trying and is_doubtful and self.probing.may_check
        self._stop()
        self.tokens_per_s = best.without
        if self._gain <= least_gain:
            return
        if must_check:
            self.probing.note_check()
            self._is_checking, self._num_rounds_left = True, _CHECK_ROUNDS
            return
        self.threshold, self.depth, self.tokens_per_s = best.threshold, best.depth, best.tokens_per_s
        self._target_costs.overhead.is_on = True

    def _stop(self) -> None:
        self.threshold = _NEVER
        self._is_checking = False
        self._target_costs.overhead.is_on = False

    def unread(self, prompt_ids: TokenIds) -> UnreadText:
        """Return what the draft has to read before it drafts for a new request."""
        num_read = self.count_read(prompt_ids)
        return UnreadText(len(prompt_ids), num_read, self._draft_costs, self._target_costs)

    def is_probed(self, number: int) -> bool:
        """Whether the request with this number is probed in this round."""
        return self.probing.is_turn_of(number, len(self._requests))

    def _survival(self, requests: list[RequestDraftLength]) -> Probabilities:
        """Return the probability that all draft tokens up to a position are accepted.

        Returns:
            float64 [requests, cases, positions].
        """
        num_positions = min(max(_NUM_ROWS // len(requests), _LEAST_POSITIONS), self.max_draft_len)
        num_cases = max(_NUM_CASES // len(requests), _LEAST_CASES)
        by_model = sample_survival([request.acceptance for request in requests], num_cases, num_positions)
        lookup_rates = np.array([request.lookup.rate for request in requests])
        by_lookup = lookup_rates[:, np.newaxis] ** np.arange(1, num_positions + 1)
        uses_lookup = np.array([request.uses_lookup for request in requests])
        by_model[uses_lookup] = by_lookup[uses_lookup][:, np.newaxis, :]
        return by_model


class RequestDraftLength:
    """Decides the draft length of one request, round by round.

    Attributes:
        acceptance: Acceptance of the draft model's tokens.
        lookup: Continuations found in the request's text, earlier answers of its session, and the corpus.
        is_refused: Whether the draft model refuses the request, which then only looks drafts up.
        text: What the draft has not read.

    Args:
        lengths: The controller.
        number: Number of the request.
        prompt_ids: int32 [n], the prompt.
        acceptance: Rates from earlier requests; None for new ones.
        earlier_ids: int32 [n], earlier answers.
        sees_margins: See ``DraftLengths.begin``.
    """

    def __init__(
        self,
        lengths: DraftLengths,
        number: int,
        prompt_ids: TokenIds,
        acceptance: RequestAcceptance | None,
        earlier_ids: TokenIds,
        *,
        sees_margins: bool,
    ) -> None:
        self.acceptance = acceptance or RequestAcceptance(lengths.acceptance)
        self.lookup = (
            LookupDraft(np.concatenate((earlier_ids, prompt_ids)), lengths.corpus())
            if sees_margins
            else LookupDraft(NO_TOKENS)
        )
        self.max_draft_len = lengths.max_draft_len
        self.text = lengths.unread(prompt_ids)
        self._lengths = lengths
        self._number = number
        self._sees_margins = sees_margins
        self._is_probe = False
        self.is_refused = False
        self._used_lookup = False

    @property
    def only_looks_up(self) -> bool:
        """Whether the draft model refuses the request, or would take too long to read it."""
        return self.is_refused or not self.text.is_worth_reading(READING_SHARE)

    @property
    def uses_lookup(self) -> bool:
        """Whether the next round looks its draft up: that promises more than the draft model."""
        return self.only_looks_up or self.lookup.rate > self.acceptance.mean_rate

    def next_round(self, num_remaining: int) -> DraftPlan:
        """Return what to draft in the next round."""
        if self._lengths.has_news and self.uses_lookup != self._used_lookup:
            self._used_lookup = not self._used_lookup
            self._lengths.note_switch()
        threshold = self._lengths.next_threshold()
        limit = min(self._lengths.max_draft_len, num_remaining - 1)
        self._is_probe = threshold == _NEVER
        if limit < 1:
            return NO_DRAFT
        if self._is_probe:
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
            is_telling = self._is_probe and self.lookup.rate > _TELLING_RATE
            if is_telling and count_accepted(self.lookup.propose(1), token_ids):
                self._lengths.probing.note_lookup()
            self.lookup.append(token_ids)
        num_known = self.text.num_tokens
        self.text.num_tokens += len(token_ids)
        drafted = proposal.drafted
        if drafted is None:
            return
        self.text.num_read = num_known
        token_ids = token_ids[proposal.num_forced :]
        num_accepted = count_accepted(drafted.token_ids, token_ids)
        if self._is_probe:
            self._lengths.probing.note(was_right=num_accepted > 0)
        if drafted.margins is not None:
            self.acceptance.observe(drafted.margins[: len(token_ids)].tolist(), num_accepted)
        else:
            self.acceptance.observe_unseen(min(len(drafted.token_ids), len(token_ids)), num_accepted)

    def _probe(self) -> DraftPlan:
        """Draft one token, which is compared with the output instead of being verified."""
        if self.is_refused or not self._lengths.is_probed(self._number):
            return NO_DRAFT
        if not self.text.is_worth_reading(TRIAL_SHARE):
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
        if drafted is None:
            return self._looked_up(limit)
        assert drafted.margins is not None
        survival = np.cumprod([self.acceptance.rate(margin) for margin in drafted.margins.tolist()])
        num_left = limit - len(drafted.token_ids)
        if not num_left or drafted.finish_reason == "stop":
            return Proposal(drafted.token_ids, survival, drafted)
        found, rate = self.lookup.propose_after(drafted.token_ids, num_left)
        further = survival[-1] * rate ** np.arange(1, len(found) + 1)
        token_ids = np.concatenate((drafted.token_ids, found))
        return Proposal(token_ids, np.concatenate((survival, further)), drafted)

    def _looked_up(self, limit: int) -> Proposal:
        token_ids = self.lookup.propose(limit)
        return Proposal(token_ids, self.lookup.rate ** np.arange(1, len(token_ids) + 1), None)


def _num_above(threshold: float, rate: float) -> int:
    """Return how many draft tokens are all accepted with a probability above the threshold."""
    if rate <= 0:
        return 0
    return int(np.log(max(threshold, _SMALL)) / np.log(min(rate, 1 - _SMALL)))
