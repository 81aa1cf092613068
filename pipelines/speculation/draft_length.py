"""How many tokens to draft: for each request, at each round, as many as make the whole server faster.

The output does not depend on the draft length (with the coupled rule not even on which drafts are kept),
so the length is free to follow the moment. All requests share one step of the target, whose time grows
with the rows in it and with their contexts. A draft token is worth the probability that it becomes
output: that it and those before it are accepted, which their margins tell (``survival.py``). The
controller expects the draft tokens of all requests, ranks them by that probability, and picks how many of
the best to verify so that the server makes the most output tokens per second (``goodput.py``). The
probability of the last of them is the threshold: a request drafts on while it is above. Which of the
drafted tokens then get a row is decided when the step is made (``executor/row_budget.py``).
"""

from __future__ import annotations

from functools import cache

import numpy as np

from pipelines.speculation.acceptance import count_accepted
from pipelines.speculation.draft_plan import NO_DRAFT, DraftPlan, KeepDrafting, Proposal, all_of
from pipelines.speculation.goodput import Probabilities, Prospect, best_draft
from pipelines.speculation.lookup_draft import LookupDraft
from pipelines.speculation.probing import Probing
from pipelines.speculation.request import Output
from pipelines.speculation.step_costs import StepCosts
from pipelines.speculation.survival import AcceptanceByMargin, RequestAcceptance
from pipelines.speculation.token_ids import NO_TOKENS, TokenIds

# What speculation must promise over doing without, to be taken up and to go on. More than nothing: what it
# costs besides the engines' steps, such as changes of shape and these decisions, is not in the model, and
# the best of many guesses promises too much.
_GAIN_TO_BEGIN, _GAIN_TO_GO_ON = 0.03, 0.01
_DECISION_INTERVAL = 3  # rounds
_NEVER = 2.0  # no probability is above it
_SMALL = 0.001
# Cases of what margins may come, and draft tokens of each request that are weighed: fewer the more requests
# there are, since a decision is made while the engines wait. More rows than these hardly ever pay.
_NUM_CASES, _LEAST_CASES = 32, 8
_NUM_ROWS, _LEAST_POSITIONS = 96, 4


class DraftLengths:
    """The controller of one pair.

    Attributes:
        threshold: Probability of becoming output above which a draft token is worth its cost now.
        depth: Tokens that a request drafts at most; each step of the draft is one for all requests.
        tokens_per_s: Output tokens that the server is expected to make in a second.
        probing: When speculation is tried while it does not pay.

    Args:
        acceptance: Of the pair, by margin.
        draft_costs: Of the draft's steps.
        target_costs: Of the target's steps.
        max_draft_len: Ceiling.
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
        self.probing = Probing()
        self._is_new = True
        self._num_begun = 0

    def begin(
        self, prompt_ids: TokenIds, acceptance: RequestAcceptance | None = None, *, sees_margins: bool = True
    ) -> RequestDraftLength:
        """Take a request into account, until ``end``.

        Args:
            prompt_ids: int32 [n], searched for continuations.
            acceptance: What is known from earlier requests of the same session.
            sees_margins: Whether lengths may depend on the margins of the tokens themselves. With the ratio
                rule they must not: leaving out what the draft was unsure of would bend the law.
        """
        request = RequestDraftLength(self, self._num_begun, prompt_ids, acceptance, sees_margins=sees_margins)
        self._num_begun += 1
        self._requests.add(request)
        self._note_change()
        return request

    def end(self, request: RequestDraftLength) -> None:
        """Forget a request."""
        self._requests.discard(request)
        self._note_change()

    def _note_change(self) -> None:
        self._num_calls_left = 0
        self._is_new = True
        if self.threshold != _NEVER:  # else what the others could not gain by it can wait for a few rounds
            self._num_rounds_left = 0

    def next_threshold(self) -> float:
        """The threshold for a request's next round.

        Requests decide together, between two steps of the target: as many of these calls as there are
        requests are a round. The threshold is worked out anew when a request comes or goes, and every few
        rounds.
        """
        if self._num_calls_left <= 0:
            self._begin_round()
        self._num_calls_left -= 1
        return self.threshold

    def _begin_round(self) -> None:
        self._num_calls_left = len(self._requests)
        self._num_rounds_left -= 1
        # Without speculation there is nothing to decide before a token that was tried was right.
        is_news = self.probing.has_news or self.threshold != _NEVER or self._is_new
        if is_news and self._num_rounds_left <= 0:
            self._is_new = False
            self._num_rounds_left = _DECISION_INTERVAL
            self._decide()
        self.probing.begin_round(is_on=self.threshold != _NEVER)

    def _decide(self) -> None:
        requests = list(self._requests)
        survival = self._survival(requests)
        best = best_draft(
            Prospect(
                survival=survival,
                mean_rates=np.array([request.acceptance.mean_rate for request in requests]),
                uses_draft=np.array([not request.uses_lookup for request in requests]),
                mean_context=float(np.mean([request.num_tokens for request in requests])),
            ),
            self._draft_costs,
            self._target_costs,
        )
        is_on = self.threshold != _NEVER
        if best.tokens_per_s > best.without * (1 + (_GAIN_TO_GO_ON if is_on else _GAIN_TO_BEGIN)):
            self.threshold, self.depth, self.tokens_per_s = best.threshold, best.depth, best.tokens_per_s
        else:
            self.threshold, self.tokens_per_s = _NEVER, best.without

    def is_probed(self, number: int, *, sees_margins: bool) -> bool:
        """Whether the request of this number is tried in this round."""
        return self.probing.is_turn_of(number, len(self._requests), sees_margins=sees_margins)

    def _survival(self, requests: list[RequestDraftLength]) -> Probabilities:
        """[requests, cases, positions]: probability that all draft tokens up to a position are accepted."""
        num_positions = min(max(_NUM_ROWS // len(requests), _LEAST_POSITIONS), self.max_draft_len)
        cases = _even_cases(max(_NUM_CASES // len(requests), _LEAST_CASES), num_positions)
        shares = np.stack([request.acceptance.shares for request in requests])
        borders = np.cumsum(shares, axis=1)[:, :-1, np.newaxis]
        classes = (borders < cases.reshape(-1)).sum(axis=1)
        rates = np.stack([request.acceptance.rates for request in requests])
        by_case = np.take_along_axis(rates, classes, axis=1).reshape(len(requests), *cases.shape)
        by_model: Probabilities = np.cumprod(by_case, axis=2)
        lookup_rates = np.array([request.lookup.rate for request in requests])
        by_lookup = lookup_rates[:, np.newaxis] ** np.arange(1, num_positions + 1)
        is_better = by_lookup.sum(axis=1) > by_model.mean(axis=1).sum(axis=1)
        for request, uses_lookup in zip(requests, is_better.tolist(), strict=True):
            request.uses_lookup = uses_lookup
        by_model[is_better] = by_lookup[is_better][:, np.newaxis, :]
        return by_model


class RequestDraftLength:
    """Decides for one request, round by round.

    Attributes:
        acceptance: Of the draft model's tokens.
        lookup: Continuations found in the request's own text.
        uses_lookup: Whether these promise more now than the draft model.
        num_tokens: Prompt and output so far.

    Args:
        lengths: Knows the other requests.
        number: Of the request among all.
        prompt_ids: int32 [n].
        acceptance: From earlier requests; None to begin anew.
        sees_margins: See ``DraftLengths.begin``.
    """

    def __init__(
        self,
        lengths: DraftLengths,
        number: int,
        prompt_ids: TokenIds,
        acceptance: RequestAcceptance | None,
        *,
        sees_margins: bool,
    ) -> None:
        self.acceptance = acceptance or RequestAcceptance(lengths.acceptance)
        self.lookup = LookupDraft(prompt_ids if sees_margins else NO_TOKENS)
        self.uses_lookup = False
        self.num_tokens = len(prompt_ids)
        self._lengths = lengths
        self._number = number
        self._sees_margins = sees_margins
        self._is_probe = False

    def next_round(self, num_remaining: int) -> DraftPlan:
        """What to draft now."""
        threshold = self._lengths.next_threshold()
        limit = min(self._lengths.max_draft_len, num_remaining - 1)
        if limit < 1:
            return NO_DRAFT
        self._is_probe = threshold == _NEVER
        if self._is_probe:
            return self._probe()
        if not self._sees_margins:
            return all_of(min(limit, _num_above(threshold, self.acceptance.mean_rate)))
        num_by_model = 0 if self.uses_lookup else min(limit, self._lengths.depth)
        return DraftPlan(
            num_by_model, lambda: self._above(threshold), lambda drafted: self._complete(drafted, limit)
        )

    def num_alone(self, num_remaining: int) -> int:
        """All: the answer is left as soon as drafting pays."""
        return num_remaining

    def observe(self, proposal: Proposal, token_ids: TokenIds) -> None:
        """Learn from a round, tokens that were not verified but whose place is known now included."""
        if self._sees_margins:  # else nothing is looked up, and a match must promise nothing
            self.lookup.append(token_ids)
        self.num_tokens += len(token_ids)
        drafted = proposal.drafted
        if drafted is None:
            return
        num_accepted = count_accepted(drafted.token_ids, token_ids)
        if self._is_probe:
            self._lengths.probing.note(was_right=num_accepted > 0)
        if drafted.margins is not None:
            self.acceptance.observe(drafted.margins[: len(token_ids)].tolist(), num_accepted)
        else:
            self.acceptance.observe_unseen(min(len(drafted.token_ids), len(token_ids)), num_accepted)

    def _probe(self) -> DraftPlan:
        """One token, to be compared with what comes and not to be verified."""
        if not self._lengths.is_probed(self._number, sees_margins=self._sees_margins):
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
        """The model's tokens; after them what is looked up, which costs nothing until it is verified."""
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
    """How many draft tokens of acceptance ``rate`` each are accepted together with probability above."""
    if rate <= 0:
        return 0
    return int(np.log(max(threshold, _SMALL)) / np.log(min(rate, 1 - _SMALL)))


@cache
def _even_cases(num_samples: int, num_positions: int) -> Probabilities:
    """float64 [num_samples, num_positions] in (0, 1): each column evenly spread, in an order of its own.

    The same every time, so that decisions do not flicker.
    """
    rng = np.random.default_rng(0)
    even = (np.arange(num_samples) + 0.5) / num_samples
    return np.stack([rng.permutation(even) for _ in range(num_positions)], axis=1)
