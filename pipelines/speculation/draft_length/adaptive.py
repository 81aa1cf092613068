"""Adapts the draft length of each request in each round to maximise the server's throughput.

The output does not depend on the draft length (with the coupled rule not even on which drafts are kept), so
the length can follow acceptance and load. All requests share one step of the target, whose time grows with
its rows and their contexts. A draft token is worth the probability that it becomes output, that is, that it
and those before it are accepted; their margins predict this (``survival.py``). The controller predicts the
draft tokens of all requests, ranks them by that probability, and verifies as many of the best as maximise
output tokens per second (``goodput.py``). The probability of the last of them is the threshold: requests
draft as long as they are above it. Which drafted tokens then get a row is decided for each step
(``executor/rows.py``).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pipelines.speculation.draft_length.goodput import Probabilities, Prospect, best_draft
from pipelines.speculation.draft_length.probing import Probing
from pipelines.speculation.draft_length.request_draft_length import RequestDraftLength
from pipelines.speculation.draft_length.step_costs import StepCosts, load_class
from pipelines.speculation.draft_length.survival import (
    AcceptanceByMargin,
    RequestAcceptance,
    sample_survival,
)
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
        draft_costs, target_costs, count_read: See the arguments.

    Args:
        acceptance: Acceptance rates of the pair by margin.
        draft_costs: Step costs of the draft.
        target_costs: Step costs of the target.
        max_draft_len: Upper limit.
        count_read: Returns how many leading tokens of a prompt the draft need not read again.
    """

    def __init__(
        self,
        acceptance: AcceptanceByMargin,
        draft_costs: StepCosts,
        target_costs: StepCosts,
        max_draft_len: int,
        count_read: Callable[[TokenIds], int] = lambda token_ids: 0,
    ) -> None:
        self.acceptance = acceptance
        self.max_draft_len = max_draft_len
        self.threshold = _NEVER
        self.depth = max_draft_len
        self.tokens_per_s = 1 / float(target_costs.seconds(2))
        self.draft_costs = draft_costs
        self.target_costs = target_costs
        self._requests: dict[RequestDraftLength, None] = {}  # in the order in which they began
        self._asked: set[RequestDraftLength] = set()  # in this round
        self._num_rounds_left = 0
        self._probing_by_load = {0: Probing()}
        self.probing = self._probing_by_load[0]
        self._gain = 0.0
        self.count_read = count_read
        self._is_new = True
        self._is_checking = False

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
        prediction_ids: TokenIds = NO_TOKENS,
        *,
        sees_margins: bool = True,
    ) -> RequestDraftLength:
        """Add a request until ``end``.

        Args:
            prompt_ids: int32 [n], searched for continuations.
            acceptance: Acceptance rates from earlier requests of the session.
            earlier_ids: int32 [n], answers of the session, searched as well.
            prediction_ids: int32 [n], what the client expects as the answer, searched as well.
            sees_margins: Whether lengths may depend on the margins of the tokens. With the ratio rule they
                must not: leaving out tokens of which the draft was unsure would change the distribution.
        """
        request = RequestDraftLength(
            self, prompt_ids, acceptance, earlier_ids, prediction_ids, sees_margins=sees_margins
        )
        self._requests[request] = None
        self.note_change()
        return request

    def end(self, request: RequestDraftLength) -> None:
        """Remove a request."""
        self._requests.pop(request, None)
        self._asked.discard(request)
        self.note_change()
        if not self._requests:
            self._stop()
            self.probing.note_idle()

    def note_change(self) -> None:
        """Decide anew soon: a request has begun or ended, or the draft model refuses it."""
        self._is_new = True
        if self.is_on:  # otherwise the decision can wait for a few rounds
            self._num_rounds_left = 0

    def note_switch(self) -> None:
        """Decide anew before the next round: a request begins or ceases to look its drafts up."""
        if not self._is_checking:
            self._num_rounds_left = 0

    def next_threshold(self, request: RequestDraftLength) -> float:
        """Return the threshold for a request's next round.

        Requests ask once between two steps of the target, so a round ends when one asks again. The threshold
        is updated after a request began or ended, and every few rounds.
        """
        if request in self._asked or not self._asked:
            self._asked.clear()
            self._begin_round()
        self._asked.add(request)
        return self.threshold

    def _begin_round(self) -> None:
        self._num_rounds_left -= 1
        self._follow_load()
        if self.has_news and self._num_rounds_left <= 0:
            self._is_new = False
            self._num_rounds_left = _DECISION_INTERVAL
            self._decide()
        is_trying = self.is_on or self._is_checking
        self.probing.begin_round(is_trying=is_trying, gain=self._gain if self.is_on else 0.0)

    def _follow_load(self) -> None:
        """Use the schedule of this load."""
        probing = self._probing_by_load.setdefault(load_class(len(self._requests)), Probing())
        if probing is not self.probing:
            self.probing = probing
            probing.forget_round()

    def _decide(self) -> None:
        requests = list(self._requests)
        prospect = Prospect(
            survival=self._survival(requests),
            mean_rates=np.array([request.acceptance.mean_rate for request in requests]),
            uses_draft=np.array([not request.uses_lookup for request in requests]),
            mean_context=float(np.mean([request.num_tokens for request in requests])),
        )
        best = best_draft(prospect, self.draft_costs, self.target_costs)
        self._gain = best.tokens_per_s / best.without - 1
        if self.probing.was_trying:
            least_gain = _GAIN_TO_GO_ON
        else:
            least_gain = _GAIN_TO_BEGIN if self.probing.may_begin else _CLEAR_GAIN
        deviation = self.target_costs.deviation(best.num_rows, len(requests), prospect.mean_context)
        is_doubtful = deviation > max(_SMALL_DEVIATION, self._gain / _NUM_DEVIATIONS)
        must_check = self.is_on and self.probing.was_trying and is_doubtful and self.probing.may_check
        was_checking = self._is_checking
        self._stop()
        self.tokens_per_s = best.without
        if self._gain <= least_gain:
            if was_checking:
                self.probing.note_error()
            return
        if must_check:
            self.probing.note_check()
            self._is_checking, self._num_rounds_left = True, _CHECK_ROUNDS
            return
        self.threshold, self.depth, self.tokens_per_s = best.threshold, best.depth, best.tokens_per_s
        self.target_costs.overhead.num_adapted = len(requests)

    def _stop(self) -> None:
        self.threshold = _NEVER
        self._is_checking = False
        self.target_costs.overhead.num_adapted = 0

    def is_probed(self, request: RequestDraftLength) -> bool:
        """Whether a request is probed in this round."""
        return self.probing.is_turn_of(list(self._requests).index(request), len(self._requests))

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
