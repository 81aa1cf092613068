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

import logging
import time

import numpy as np
import numpy.typing as npt

from pipelines.errors import DraftproofError
from pipelines.speculation.acceptance import count_accepted
from pipelines.speculation.draft_plan import NO_DRAFT, DraftPlan, KeepDrafting
from pipelines.speculation.request import Output
from pipelines.speculation.step_costs import StepCosts
from pipelines.speculation.survival import AcceptanceByMargin, RequestAcceptance
from pipelines.speculation.token_ids import TokenIds

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
_FIRST_RETRY_S, _LAST_RETRY_S = 1.0, 60.0

_LOG = logging.getLogger(__name__)


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
        self.num_draft_failures = 0
        self._num_decisions_left = 0
        self._retry_at_s = 0.0
        self._retry_after_s = _FIRST_RETRY_S
        # What margins may come: the same evenly spread cases every time, so that decisions do not flicker.
        self._cases = _even_cases(_NUM_SAMPLES, max_draft_len)

    def begin(self) -> RequestDraftLength:
        """Take a request into account, until ``end``."""
        request = RequestDraftLength(self)
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

    @property
    def draft_is_there(self) -> bool:
        """Whether the draft is worth asking: it did not fail lately."""
        return time.monotonic() >= self._retry_at_s

    def draft_failed(self, error: DraftproofError) -> None:
        """Do without the draft for a while, longer each time it fails again."""
        self.num_draft_failures += 1
        if not self.draft_is_there:
            return  # another request of the same step
        if self._retry_after_s == _FIRST_RETRY_S:
            _LOG.warning("the draft fails, requests go on with the target alone: %s", error)
        self._retry_at_s = time.monotonic() + self._retry_after_s
        self._retry_after_s = min(2 * self._retry_after_s, _LAST_RETRY_S)

    def draft_answered(self) -> None:
        """Note that the draft is there."""
        if self._retry_after_s != _FIRST_RETRY_S:
            _LOG.warning("the draft answers again")
            self._retry_after_s = _FIRST_RETRY_S

    def _best_threshold(self) -> float:
        num_requests = len(self._requests)
        classes = np.searchsorted(np.cumsum(self.acceptance.shares)[:-1], self._cases)
        rates = np.stack([request.acceptance.rates for request in self._requests])
        # [requests, samples, positions]: probability that all draft tokens up to a position are accepted.
        survival = np.cumprod(rates[:, classes], axis=2)
        thresholds = _THRESHOLDS[:, np.newaxis, np.newaxis, np.newaxis]
        is_verified = survival >= thresholds
        lengths = np.count_nonzero(is_verified, axis=3)
        rows = num_requests + lengths.mean(axis=2).sum(axis=1)
        tokens = num_requests + (is_verified * survival).sum(axis=3).mean(axis=2).sum(axis=1)
        # The first token is drafted in any case; the longest proposal is waited for.
        means = np.array([request.acceptance.mean_rate for request in self._requests])
        goes_on = survival[:, :, :-1] * means[:, np.newaxis, np.newaxis] >= thresholds
        depth = 1 + np.count_nonzero(goes_on, axis=3).max(axis=1).mean(axis=1)
        draft_s = float(self._draft_costs.seconds(num_requests))
        goodput = tokens / (self._target_costs.seconds(rows) + depth * draft_s)
        without = num_requests / float(self._target_costs.seconds(num_requests))
        best = int(np.argmax(goodput))
        is_on = self.threshold != _NEVER
        needed = without if is_on else without * (1 + _HYSTERESIS)
        return float(_THRESHOLDS[best]) if goodput[best] > needed else _NEVER


class RequestDraftLength:
    """Decides for one request, round by round.

    Args:
        lengths: Knows the other requests.
    """

    def __init__(self, lengths: DraftLengths) -> None:
        self.acceptance = RequestAcceptance(lengths.acceptance)
        self._lengths = lengths
        self._num_rounds_off = 0
        self._probe_agreed = False

    def next_round(self, num_remaining: int) -> DraftPlan:
        """What to draft now."""
        if not self._lengths.draft_is_there:
            return NO_DRAFT
        threshold = self._lengths.next_threshold()
        limit = min(self._lengths.max_draft_len, num_remaining - 1)
        if limit < 1:
            return NO_DRAFT
        if threshold < _NEVER:
            self._num_rounds_off = 0
            return self._plan(threshold, limit)
        self._num_rounds_off += 1
        if self._num_rounds_off >= _PROBE_INTERVAL or self._probe_agreed:
            self._num_rounds_off = 0
            return _PROBE
        return NO_DRAFT

    def draft_failed(self, error: DraftproofError) -> None:
        """Let all requests do without the draft for a while."""
        self._lengths.draft_failed(error)

    def observe(self, proposal: Output, token_ids: TokenIds) -> None:
        """Learn from a round, tokens that were not verified but whose place is known now included."""
        if proposal.margins is not None:
            self._lengths.draft_answered()
            margins = proposal.margins[: len(token_ids)].tolist()
            num_accepted = count_accepted(proposal.token_ids, token_ids)
            self.acceptance.observe(margins, num_accepted)
            self._probe_agreed = num_accepted > 0

    def _plan(self, threshold: float, limit: int) -> DraftPlan:
        def start() -> KeepDrafting:
            survival = 1.0

            def keep_drafting(margin: float) -> bool:
                nonlocal survival
                survival *= self.acceptance.rate(margin)
                return survival * self.acceptance.mean_rate >= threshold

            return keep_drafting

        def num_to_verify(proposal: Output) -> int:
            assert proposal.margins is not None
            survival = np.cumprod([self.acceptance.rate(margin) for margin in proposal.margins.tolist()])
            return int(np.count_nonzero(survival >= threshold))

        return DraftPlan(limit, start, num_to_verify)


_PROBE = DraftPlan(1, lambda: lambda margin: False, lambda proposal: 0)


def _even_cases(num_samples: int, num_positions: int) -> npt.NDArray[np.float64]:
    """float64 [num_samples, num_positions] in (0, 1): each column evenly spread, in an order of its own."""
    rng = np.random.default_rng(0)
    even = (np.arange(num_samples) + 0.5) / num_samples
    return np.stack([rng.permutation(even) for _ in range(num_positions)], axis=1)
