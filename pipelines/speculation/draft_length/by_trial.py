"""Adapts the draft length by trials, for engines whose margins and step costs are unknown.

By default the target answers alone, in streams that are as long as possible. Now and then one request tries
to draft. If its rounds are faster than the target alone at the same load, requests draft as long as that
holds. A failed trial doubles the pause before the next one. While drafting pays, the target alone is measured
again at growing intervals, since a measurement that was slow by chance would otherwise stay forever.

Engines with margins use ``adaptive`` instead.

An engine that reports neither step times nor margins can still be timed: a token of the target alone, a
proposal, a verification. These times include everything: calls, queues and the effect of other requests.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

from pipelines.speculation.draft_length.draft_plan import NO_DRAFT, DraftPlan, Proposal, all_of
from pipelines.speculation.draft_length.step_costs import load_class
from pipelines.speculation.draft_length.survival import NUM_CLASSES, AcceptanceByMargin, RequestAcceptance
from pipelines.speculation.request import Output
from pipelines.speculation.token_ids import NO_TOKENS, TokenIds, count_accepted

# The median of this many counts, since the first calls of a server and occasional others are slow.
_NUM_ROUNDS = 5
_NUM_ALONE = 3


_PRIOR_RATE = 0.7  # prior acceptance rate; pairs of one model family reach 0.6 to 0.8
_HYSTERESIS = 0.02
_TRIAL_ROUNDS = 3  # their median is no outlier
_FIRST_TRIAL, _LONGEST_TRIAL = 2, 4  # draft tokens
_FIRST_PAUSE, _LAST_PAUSE = 64, 8192  # output tokens without drafting between two trials
_PAUSE_AFTER_GAIN = 16  # first pause after drafting that paid
_FIRST_CHECK, _LAST_CHECK = 512, 8192  # output tokens with drafting between measurements of the target alone
_TIMED_TOKENS = 8  # tokens of the target alone per measurement
# Length of a stream of the target alone, after which the decision is made again.
_SHORTEST_ANSWER, _LONGEST_ANSWER = 16, 256
_NEVER = 2.0  # above every rate


@dataclass(eq=False)
class Load:
    """The latest times at one load, and what is tried there.

    Attributes:
        alone_s: Times per token of the target alone.
        proposals: Draft tokens and time of proposals.
        verifications_s: Times of their verifications.
        pause: Output tokens without drafting between two trials.
        num_until_trial: Output tokens until the next trial.
        num_drafting: Output tokens of drafting rounds since the last trial began.
        check: Output tokens with drafting between two measurements of the target alone.
        num_until_check: Output tokens until the next measurement.
        trier: The request that runs the current trial.
        num_tries_left: Remaining rounds of the trial.
    """

    alone_s: deque[float] = field(default_factory=lambda: deque(maxlen=_NUM_ALONE))
    proposals: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_NUM_ROUNDS))
    verifications_s: deque[float] = field(default_factory=lambda: deque(maxlen=_NUM_ROUNDS))
    pause: int = _FIRST_PAUSE
    num_until_trial: int = 0
    num_drafting: int = 0
    check: int = _FIRST_CHECK
    num_until_check: int = _FIRST_CHECK
    trier: TriedDraftLength | None = None
    num_tries_left: int = 0

    def best(self, acceptance_rate: float, max_draft_len: int) -> tuple[int, float] | None:
        """Return the draft length with the highest throughput; None if too little is known.

        Args:
            acceptance_rate: Acceptance rate of a draft token, below 1.
            max_draft_len: Upper limit.

        Returns:
            The length, and the expected throughput relative to the target alone.
        """
        if not (self.alone_s and self.proposals):
            return None
        alone_s, verification_s = median(self.alone_s), median(self.verifications_s)
        # A verification is a step and a call; a token of the target alone is just a step.
        call_s = max(verification_s - alone_s, 0.0)
        step_s = median(max(seconds - call_s, 0.0) / count for count, seconds in self.proposals)
        gains = []
        num_tokens = accepted = 1.0
        for count in range(1, max_draft_len + 1):
            accepted *= acceptance_rate
            num_tokens += accepted
            gains.append(num_tokens * alone_s / (verification_s + call_s + count * step_s))
        gain = max(gains)
        return gains.index(gain) + 1, gain

    def least_rate(self, max_draft_len: int) -> float:
        """Return the acceptance rate above which drafting pays, in steps of 0.05; 2 if it never does."""
        for rate in (twentieth / 20 for twentieth in range(20)):
            found = self.best(rate, max_draft_len)
            if found is not None and found[1] > 1:
                return rate
        return _NEVER

    def begin_trial(self, request: TriedDraftLength) -> None:
        """Let a request try to draft."""
        self.trier, self.num_tries_left = request, _TRIAL_ROUNDS
        self.num_until_trial, self.num_drafting = self.pause, 0
        request.is_drafting = True

    def trial_length(self, max_draft_len: int) -> int:
        """Return the draft tokens of a trial."""
        hoped = self.best(_PRIOR_RATE, max_draft_len)
        if hoped is None:
            return min(_FIRST_TRIAL, max_draft_len)
        return min(hoped[0], _LONGEST_TRIAL) if hoped[1] > 1 else 1

    def stop(self, request: TriedDraftLength) -> None:
        """Stop drafting; its gain so far decides when it is tried again."""
        request.is_drafting = False
        has_paid = self.num_drafting > self.pause
        self.pause = _PAUSE_AFTER_GAIN if has_paid else min(2 * self.pause, _LAST_PAUSE)
        self.num_until_trial, self.num_drafting = self.pause, 0
        self.check = self.num_until_check = _FIRST_CHECK


class TriedDraftLengths:
    """Controls the draft lengths of all requests of a server by trials.

    Attributes:
        acceptance: Acceptance rate of the pair, the same for all margins.

    Args:
        max_draft_len: Upper limit.
        clock: Monotonic time in seconds.
    """

    def __init__(self, max_draft_len: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.max_draft_len = max_draft_len
        self.clock = clock
        self.acceptance = AcceptanceByMargin((_PRIOR_RATE,) * NUM_CLASSES, (1 / NUM_CLASSES,) * NUM_CLASSES)
        self._requests: set[TriedDraftLength] = set()
        self._loads: dict[int, Load] = {}

    @property
    def load(self) -> Load:
        """The state for the current number of requests."""
        return self._loads.setdefault(load_class(max(len(self._requests), 1)), Load())

    @property
    def threshold(self) -> float:
        """Acceptance rate above which drafting pays at the current load; 2 if it never does."""
        return self.load.least_rate(self.max_draft_len)

    def begin(
        self,
        prompt_ids: TokenIds,
        acceptance: RequestAcceptance,
        earlier_ids: TokenIds = NO_TOKENS,
        *,
        sees_margins: bool,
    ) -> TriedDraftLength:
        """Add a request until ``end``; its prompt, earlier answers and margins are not used."""
        request = TriedDraftLength(self, acceptance)
        self._requests.add(request)
        return request

    def end(self, request: TriedDraftLength) -> None:
        """Remove a request; an unfinished trial counts as far as it went."""
        self._requests.discard(request)
        for load in self._loads.values():
            if load.trier is request:
                load.trier = None

    def give_back_trial(self, request: TriedDraftLength) -> None:
        """Let another request try drafting, without a pause: this one could not."""
        for load in self._loads.values():
            if load.trier is request:
                load.trier, load.num_until_trial = None, 0

    def note_failure(self, request: TriedDraftLength) -> None:
        """Record that the draft failed or proposed nothing."""
        load = self.load
        if load.trier is request:
            load.trier = None
        load.stop(request)

    def note_round(self, request: TriedDraftLength, num_output: int) -> None:
        """Count a round that drafted."""
        load = self.load
        load.num_drafting += num_output
        load.num_until_check -= num_output
        if load.trier is request:
            load.num_tries_left -= 1
            if not load.num_tries_left:
                load.trier = None

    def next_length(self, request: TriedDraftLength) -> int:
        """Return the draft tokens of a request's next round; 0 for the target alone."""
        load = self.load
        if not load.alone_s:
            return 0
        if load.trier is request:
            return load.trial_length(self.max_draft_len)
        found = load.best(request.acceptance.mean_rate, self.max_draft_len)
        if found is not None:
            length, gain = found
            if gain >= (1.0 if request.is_drafting else 1 + _HYSTERESIS):
                request.is_drafting = True
                return length if load.num_until_check > 0 else 0
            if request.is_drafting:
                load.stop(request)
        if load.num_until_trial > 0 or load.trier is not None:
            return 0
        load.begin_trial(request)
        return load.trial_length(self.max_draft_len)

    def next_answer(self) -> int:
        """Return the length of the target's next stream until the next decision."""
        load = self.load
        if not load.alone_s:
            return 1 + _TIMED_TOKENS
        if load.num_until_check <= 0:
            load.check = load.num_until_check = min(2 * load.check, _LAST_CHECK)
            return 1 + _TIMED_TOKENS
        return min(max(load.num_until_trial, _SHORTEST_ANSWER), _LONGEST_ANSWER)


class TriedDraftLength:
    """Decides the draft length of one request, round by round.

    Attributes:
        acceptance: Acceptance of the draft's tokens.
        is_drafting: Whether the request drafts, because it pays or as a trial.

    Args:
        lengths: The controller.
        acceptance: Rates from earlier requests, or new ones.
    """

    def __init__(self, lengths: TriedDraftLengths, acceptance: RequestAcceptance) -> None:
        self.acceptance = acceptance
        self.max_draft_len = lengths.max_draft_len
        self.is_drafting = False
        self._lengths = lengths
        self._num_alone_left = 0  # tokens of the answer that the target gives now
        self._observed_s = self._proposed_s = 0.0  # ends of the latest round and proposal
        self._proposal_s: float | None = None  # what the proposal of this round took; None without one
        self._timed_s, self._num_timed = 0.0, -1  # tokens of this answer after its first; -1 before that
        self._has_begun = False
        self._has_stopped = False

    def next_round(self, num_remaining: int) -> DraftPlan:
        """Return what to draft in the next round."""
        limit = min(self._lengths.max_draft_len, num_remaining - 1)
        if self._num_alone_left or self._has_stopped or limit < 1:
            return NO_DRAFT
        wanted = all_of(min(self._lengths.next_length(self), limit))
        if not wanted.max_tokens:
            return NO_DRAFT
        began_s = self._lengths.clock()

        def complete(drafted: Output | None) -> Proposal:
            self._proposed_s = self._lengths.clock()
            self._proposal_s = self._proposed_s - began_s
            return wanted.complete(drafted)

        return DraftPlan(wanted.max_tokens, wanted.keep_drafting, complete)

    def num_alone(self, num_remaining: int) -> int:
        """Return the length of the target's stream that begins now; one token if the next round drafts."""
        if self._proposal_s is not None:
            self._proposal_s = None
            if not self._has_stopped:
                self._lengths.note_failure(self)
        is_first, self._has_begun = not self._has_begun, True
        is_one = is_first and not self._has_stopped and self._lengths.next_length(self)
        self._num_alone_left = min(1 if is_one else self._lengths.next_answer(), num_remaining)
        self._num_timed = -1
        return self._num_alone_left

    def note_refusal(self) -> None:
        """Draft no more for this request; a trial that it began is another's."""
        self._has_stopped, self.is_drafting = True, False
        self._lengths.give_back_trial(self)

    def observe(self, proposal: Proposal, token_ids: TokenIds) -> None:
        """Learn from a round or from tokens of the target alone."""
        now_s, last_s = self._lengths.clock(), self._observed_s
        self._observed_s = now_s
        if proposal.drafted is None or self._proposal_s is None:
            self._observe_alone(len(token_ids), now_s - last_s)
            return
        draft_ids = proposal.drafted.token_ids
        load = self._lengths.load
        load.proposals.append((len(draft_ids), self._proposal_s))
        load.verifications_s.append(now_s - self._proposed_s)
        self._lengths.note_round(self, len(token_ids))
        self._proposal_s = None
        num_accepted = count_accepted(draft_ids, token_ids)
        num_compared = min(len(draft_ids), num_accepted + 1)
        self.acceptance.observe_unseen(num_compared, num_accepted)
        for index in range(num_compared):
            self._lengths.acceptance.observe_level(_PRIOR_RATE, was_accepted=index < num_accepted)

    def end(self) -> None:
        """Record that the request has ended."""
        self._lengths.end(self)

    def _observe_alone(self, num_tokens: int, seconds: float) -> None:
        self._num_alone_left -= num_tokens
        self._lengths.load.num_until_trial -= num_tokens
        if self._num_timed < 0:  # the first token waited for the call, and perhaps for the prompt
            self._timed_s, self._num_timed = 0.0, 0
            return
        self._timed_s += seconds
        self._num_timed += num_tokens
        if self._num_timed >= _TIMED_TOKENS:
            self._lengths.load.alone_s.append(self._timed_s / self._num_timed)
            self._timed_s, self._num_timed = 0.0, 0
