"""How many tokens to draft: for each request, at each round, as many as make the whole server faster.

The output does not depend on the draft length (with the coupled rule not even on which drafts are kept),
so the length is free to follow the moment. All requests share one step of the target, whose time grows
with the rows in it. A draft token is worth the probability that it becomes output: that it and those
before it are accepted, which their margins tell (``survival.py``). There is one threshold for all
requests: tokens above it are verified, and a request drafts on while it is above. The controller picks
the threshold that maximises the expected output tokens per second of the server.

Source: goodput as the objective: SmartSpec, arXiv:2406.14066, which picks one length for a batch from its
mean acceptance. Here every token of every request is judged.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from pipelines.speculation.acceptance import count_accepted
from pipelines.speculation.draft_plan import NO_DRAFT, DraftPlan, KeepDrafting, Proposal, all_of
from pipelines.speculation.lookup_draft import LookupDraft
from pipelines.speculation.request import Output
from pipelines.speculation.step_costs import StepCosts
from pipelines.speculation.survival import AcceptanceByMargin, RequestAcceptance
from pipelines.speculation.token_ids import NO_TOKENS, TokenIds

# Speculation is left when it promises less than doing without, and taken up again when it promises more
# by this share.
_HYSTERESIS = 0.01
# Rounds without drafting after which one token is drafted, not to be verified but to be compared.
_PROBE_INTERVAL = 3
_THRESHOLDS = np.array(
    [0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.15, 0.1, 0.07, 0.05, 0.03, 0.02]
)
_NEVER = 2.0  # no probability is above it
_NUM_SAMPLES = 32


class DraftLengths:
    """The controller of one pair.

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
        self._draft_costs = draft_costs
        self._target_costs = target_costs
        self._requests: set[RequestDraftLength] = set()
        self._num_decisions_left = 0
        # What margins may come: the same evenly spread cases every time, so that decisions do not flicker.
        self._cases = _even_cases(_NUM_SAMPLES, max_draft_len)

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
        request = RequestDraftLength(self, prompt_ids, acceptance, sees_margins=sees_margins)
        self._requests.add(request)
        self._num_decisions_left = 0
        return request

    def end(self, request: RequestDraftLength) -> None:
        """Forget a request."""
        self._requests.discard(request)
        self._num_decisions_left = 0

    def next_threshold(self) -> float:
        """Probability of becoming output above which a draft token is worth its cost now.

        It is worked out anew after as many decisions as there are requests: they decide together, between
        two steps of the target.
        """
        if self._num_decisions_left <= 0:
            self.threshold = self._best_threshold()
            self._num_decisions_left = len(self._requests)
        self._num_decisions_left -= 1
        return self.threshold

    def _best_threshold(self) -> float:
        requests = list(self._requests)
        num_requests = len(requests)
        survival = self._survival(requests)
        drafts = np.array([not request.uses_lookup for request in requests])
        means = np.array([request.acceptance.mean_rate for request in requests])
        thresholds = _THRESHOLDS[:, np.newaxis, np.newaxis, np.newaxis]
        is_verified = survival >= thresholds
        rows = num_requests + is_verified.sum(axis=(1, 3)).mean(axis=1)
        tokens = num_requests + (is_verified * survival).sum(axis=(1, 3)).mean(axis=1)
        # A draft's first token is drafted in any case; the longest proposal is waited for.
        goes_on = survival[:, :, :-1] * means[:, np.newaxis, np.newaxis] >= thresholds
        depths = (1 + np.count_nonzero(goes_on, axis=3)) * drafts[:, np.newaxis]
        draft_s = float(self._draft_costs.seconds(max(int(drafts.sum()), 1)))
        seconds = self._target_costs.seconds(rows) + depths.max(axis=1).mean(axis=1) * draft_s
        goodput = tokens / seconds
        without = num_requests / float(self._target_costs.seconds(num_requests))
        best = int(np.argmax(goodput))
        is_on = self.threshold != _NEVER
        needed = without if is_on else without * (1 + _HYSTERESIS)
        return float(_THRESHOLDS[best]) if goodput[best] > needed else _NEVER

    def _survival(self, requests: list[RequestDraftLength]) -> npt.NDArray[np.float64]:
        """[requests, cases, positions]: probability that all draft tokens up to a position are accepted."""
        classes = np.searchsorted(np.cumsum(self.acceptance.shares)[:-1], self._cases)
        rates = np.stack([request.acceptance.rates for request in requests])
        by_model: npt.NDArray[np.float64] = np.cumprod(rates[:, classes], axis=2)
        lookup_rates = np.array([request.lookup.rate for request in requests])
        by_lookup = lookup_rates[:, np.newaxis] ** np.arange(1, self.max_draft_len + 1)
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

    Args:
        lengths: Knows the other requests.
        prompt_ids: int32 [n].
        acceptance: From earlier requests; None to begin anew.
        sees_margins: See ``DraftLengths.begin``.
    """

    def __init__(
        self,
        lengths: DraftLengths,
        prompt_ids: TokenIds,
        acceptance: RequestAcceptance | None,
        *,
        sees_margins: bool,
    ) -> None:
        self.acceptance = acceptance or RequestAcceptance(lengths.acceptance)
        self.lookup = LookupDraft(prompt_ids if sees_margins else NO_TOKENS)
        self.uses_lookup = False
        self._lengths = lengths
        self._sees_margins = sees_margins
        self._num_rounds_off = 0
        self._probe_agreed = False

    def next_round(self, num_remaining: int) -> DraftPlan:
        """What to draft now."""
        threshold = self._lengths.next_threshold()
        limit = min(self._lengths.max_draft_len, num_remaining - 1)
        if limit < 1:
            return NO_DRAFT
        if threshold < _NEVER and self.uses_lookup:
            ready_ids = self.lookup.propose(min(limit, _num_above(threshold, self.lookup.rate)))
            return replace(NO_DRAFT, ready_ids=ready_ids)
        if threshold < _NEVER:
            self._num_rounds_off = 0
            return self._plan(threshold, limit)
        self._num_rounds_off += 1
        if self._sees_margins and (self._num_rounds_off >= _PROBE_INTERVAL or self._probe_agreed):
            self._num_rounds_off = 0
            return _PROBE
        return NO_DRAFT

    def observe(self, proposal: Proposal, token_ids: TokenIds) -> None:
        """Learn from a round, tokens that were not verified but whose place is known now included."""
        self.lookup.append(token_ids)
        drafted = proposal.drafted
        if drafted is None or proposal.num_ready:
            return
        num_accepted = count_accepted(drafted.token_ids, token_ids)
        if drafted.margins is not None:
            self.acceptance.observe(drafted.margins[: len(token_ids)].tolist(), num_accepted)
            self._probe_agreed = num_accepted > 0
        else:
            self.acceptance.observe_unseen(min(len(drafted.token_ids), len(token_ids)), num_accepted)

    def _plan(self, threshold: float, limit: int) -> DraftPlan:
        if not self._sees_margins:
            return all_of(min(limit, _num_above(threshold, self.acceptance.mean_rate)))

        def start() -> KeepDrafting:
            survival = 1.0

            def keep_drafting(margin: float) -> bool:
                nonlocal survival
                survival *= self.acceptance.rate(margin)
                return survival * self.acceptance.mean_rate >= threshold

            return keep_drafting

        def num_to_verify(drafted: Output) -> int:
            if drafted.margins is None:  # an engine behind a wire that does not carry them
                return len(drafted.token_ids)
            survival = np.cumprod([self.acceptance.rate(margin) for margin in drafted.margins.tolist()])
            return int(np.count_nonzero(survival >= threshold))

        return DraftPlan(NO_TOKENS, limit, start, num_to_verify)


_PROBE = DraftPlan(NO_TOKENS, 1, lambda: lambda margin: False, lambda drafted: 0)


def _num_above(threshold: float, rate: float) -> int:
    """How many draft tokens of acceptance ``rate`` each are accepted together with probability above."""
    if rate <= 0:
        return 0
    return int(np.log(threshold) / np.log(min(rate, 0.999)))


def _even_cases(num_samples: int, num_positions: int) -> npt.NDArray[np.float64]:
    """float64 [num_samples, num_positions] in (0, 1): each column evenly spread, in an order of its own."""
    rng = np.random.default_rng(0)
    even = (np.arange(num_samples) + 0.5) / num_samples
    return np.stack([rng.permutation(even) for _ in range(num_positions)], axis=1)
