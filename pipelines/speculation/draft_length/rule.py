"""Decides how many tokens each request drafts in each round.

The output does not depend on the draft length, so the length is free to be the fastest one. Let a_r be the
probability that the next draft token of request r is accepted, and k_r the number of tokens that it drafts.
A round is expected to write, for each request, and to take

    E_r = 1 + a_r + a_r^2 + ... + a_r^k_r                          tokens
    T = V(sum of 1 + k_r) + D(m_1) + D(m_2) + ...                  seconds

V and D are the times of a step of target and draft by its decode tokens (``step_times.py``), and m_j is the
number of requests that draft at least j tokens. The requests of a round share its time, so the lengths are
those with the greatest geometric mean of speeds, that is, the greatest

    sum over requests of log(E_r / T)

With one request this is E / T, tokens over seconds. With several, no request becomes faster at the cost of
others that become slower by more.

These lengths are means. How sure the draft is of a token shows only when it is drafted (``acceptance.py``).
With s the probability that this token and those before it are accepted, a request drafts another one while

    s * a_r >= w_r * (V_j + D(m_j)) / m_j   where w_r = number of requests * E_r / T

is what a second is worth to it, in tokens, and V_j is the time that the decode tokens of all requests at its
position j add to the verification. Beyond the longest k no other request is expected to draft: m_j = 1.
Tokens at the end with s < w_r * V_j / m_j are not verified. A looked-up token costs no step of the draft:
D = 0.

A draft in one pass proposes all tokens in one step, whose rows are those of all requests: one for each token,
and one for each that was accepted in the round before, which it reads again in place of mask tokens. So a
token at depth j costs 1 + a_r^j rows, the draft's part of T is D(rows), and the length is decided before the
tokens are known.

Source: the mean over many rounds is best where each decision maximises tokens - w * seconds (Dinkelbach 1967,
On nonlinear fractional programming). SmartSpec (arXiv:2406.14066) maximises tokens over seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, takewhile
from operator import itemgetter, mul

import numpy as np

from pipelines.speculation.draft_length.acceptance import Acceptance
from pipelines.speculation.draft_length.draft_plan import NO_DRAFT, DraftPlan, KeepDrafting, all_of
from pipelines.speculation.draft_length.step_times import StepTimes
from pipelines.speculation.lookup.lookup_draft import LookupDraft
from pipelines.speculation.proposal import Proposal
from pipelines.speculation.request import Output
from pipelines.speculation.token_ids import NO_TOKENS, TokenIds, count_accepted

_LEAST_REST = 64  # tokens that an answer is expected to have left, unless its limit is nearer
# Lengths of the first rounds of a server with one request, whatever promises most, so that their times become
# known. With more requests, one round without drafts is tried.
_TRIALS = (3, 1, 2, 4)
_LEAST_GAIN = 0.02  # of a logarithm: less is lost again by what no step's time shows, and by errors of times


@dataclass
class Aim:
    """What a request is to draft in a round, and what that follows from.

    Attributes:
        is_lookup: Whether tokens are looked up.
        acceptance: Probability that the next draft token is accepted.
        reading_s: Seconds in which the draft reads what it does not know, as a part of this round.
        length: Draft tokens, on average.
        prices: By position, as many as the longest draft: the least probability of becoming output with which
            a token is worth a step of the draft and a decode token of the target.
        target_prices: The same for a token that is drafted already.
    """

    is_lookup: bool
    acceptance: float
    reading_s: float
    length: int = 0
    prices: list[float] = field(default_factory=list)
    target_prices: list[float] = field(default_factory=list)


class DraftLengths:
    """Decides the draft lengths of all requests of a server.

    Attributes:
        acceptance: What requests have shown about the draft.
        in_one_pass: See the argument.

    Args:
        draft_times: Times of a step of the draft; None without a draft model: tokens are only looked up.
        target_times: Times of a step of the target.
        max_draft_len: Upper limit.
        count_read: Returns how many leading tokens of a prompt with a cache salt the draft need not read.
        in_one_pass: Whether the draft proposes all tokens of a round in one step.
    """

    def __init__(
        self,
        draft_times: StepTimes | None,
        target_times: StepTimes,
        max_draft_len: int,
        count_read: Callable[[TokenIds, str], int] = lambda token_ids, cache_salt: 0,
        *,
        in_one_pass: bool = False,
    ) -> None:
        self.acceptance = Acceptance()
        self.max_draft_len = max_draft_len
        self.count_read = count_read
        self.in_one_pass = in_one_pass
        self._has_draft = draft_times is not None
        self._draft_times = draft_times or StepTimes((1, 2), (0.0, 0.0))
        self._target_times = target_times
        self._requests: dict[RequestDraftLength, None] = {}  # in the order in which they began
        self._asked: set[RequestDraftLength] = set()  # in this round
        self._aims: dict[RequestDraftLength, Aim] = {}
        self._trials: dict[int, list[int]] = {}  # left, by number of requests

    @property
    def mean_length(self) -> float:
        """Draft tokens that the latest round aimed at for each request; 0 without a round."""
        return sum(aim.length for aim in self._aims.values()) / max(len(self._aims), 1)

    def begin(
        self,
        prompt_ids: TokenIds,
        earlier_ids: TokenIds = NO_TOKENS,
        prediction_ids: TokenIds = NO_TOKENS,
        *,
        sees_gaps: bool = True,
        cache_salt: str = "",
    ) -> RequestDraftLength:
        """Add a request until ``end``.

        Args:
            prompt_ids: int32 [n], searched for continuations.
            earlier_ids: int32 [n], answers of the session, searched as well.
            prediction_ids: int32 [n], what the client expects as the answer, searched as well.
            sees_gaps: Whether lengths may depend on the gaps of the tokens. With the ratio rule they must
                not: leaving out tokens of which the draft was unsure would change the distribution.
            cache_salt: See ``GenerationRequest``.
        """
        known_ids = np.concatenate((earlier_ids, prompt_ids)) if sees_gaps else NO_TOKENS
        lookup = LookupDraft(known_ids, prediction_ids)
        num_unread = len(prompt_ids) - self.count_read(prompt_ids, cache_salt)
        request = RequestDraftLength(self, lookup, num_unread, sees_gaps=sees_gaps)
        if not self._has_draft:
            request.note_refusal()
        self._requests[request] = None
        self._asked.clear()
        return request

    def end(self, request: RequestDraftLength) -> None:
        """Remove a request."""
        self._requests.pop(request, None)
        self._asked.clear()

    def aim(self, request: RequestDraftLength) -> Aim:
        """Return what a request is to draft in its next round.

        Requests ask once between two steps of the target, so a round begins when one asks again.
        """
        if request in self._asked or not self._asked:
            self._asked.clear()
            self._begin_round()
        self._asked.add(request)
        return self._aims[request]

    def _begin_round(self) -> None:
        requests = list(self._requests)
        aims = [Aim(each.uses_lookup, each.expected_acceptance, self._reading_s(each)) for each in requests]
        self._aims = dict(zip(requests, aims, strict=True))
        round_s = self._choose_lengths(aims)
        trials = self._trials.setdefault(len(aims), list(_TRIALS if len(aims) == 1 else (0,)))
        is_read = max(each.reading_s for each in aims) < self._target_times.seconds(len(aims))
        if trials and is_read and not all(each.is_lookup for each in aims):
            length = min(trials.pop(0), self.max_draft_len)
            free = [0.0] * length + [math.inf] * (self.max_draft_len - length)
            for each in aims:
                each.length, each.prices, each.target_prices = length, free, free
        else:
            self._set_prices(aims, round_s)

    def _choose_lengths(self, aims: Sequence[Aim]) -> float:
        """Set the best lengths, and return the seconds of such a round.

        Tokens are added, of any request, in the order of what they gain, and all these rounds are compared.
        No engine computes meanwhile, and numpy's calls would take several times as long as this loop.
        """
        num_requests, target_s, draft_s = len(aims), self._target_times.seconds, self._draft_times.seconds
        gains = {rate: _gains(rate, self.max_draft_len) for rate in {each.acceptance for each in aims}}
        tokens = [(gain, owner) for owner, each in enumerate(aims) for gain in gains[each.acceptance]]
        lengths, best_lengths = [0] * num_requests, [0] * num_requests
        draft_rows = [0.0] * self.max_draft_len  # of each step of the draft: m_j
        gain, reading_s, drafting_s, best_s = 0.0, 0.0, 0.0, target_s(num_requests)
        best_speed = -num_requests * math.log(best_s)
        for count, (gain_of_token, owner) in enumerate(sorted(tokens, key=itemgetter(0), reverse=True), 1):
            aim, depth = aims[owner], lengths[owner]
            lengths[owner] += 1
            gain += gain_of_token
            if not aim.is_lookup:
                if self.in_one_pass:
                    draft_rows[0] += 1 + aim.acceptance ** (depth + 1)
                else:
                    draft_rows[depth] += 1
                reading_s += 0.0 if depth else aim.reading_s
                drafting_s = reading_s + sum(draft_s(round(rows)) for rows in draft_rows if rows)
            seconds = target_s(num_requests + count) + drafting_s
            speed = gain - num_requests * (math.log(seconds) + _LEAST_GAIN)
            if speed > best_speed:
                best_speed, best_s, best_lengths = speed, seconds, lengths.copy()
        for aim, length in zip(aims, best_lengths, strict=True):
            aim.length = length
        return best_s

    def _set_prices(self, aims: Sequence[Aim], round_s: float) -> None:
        target_s, draft_s = self._target_times.seconds, self._draft_times.seconds
        drafted = [each.length for each in aims if not each.is_lookup]
        if not any(drafted):
            self._draft_times.follow(self._target_times)
        num_rows = len(aims) + sum(each.length for each in aims) - sum(drafted)  # those that no model drafts
        token_s, step_s = [], []
        for depth in range(self.max_draft_len):
            num_drafting = max(1, sum(length > depth for length in drafted))
            token_s.append((target_s(num_rows + num_drafting) - target_s(num_rows)) / num_drafting)
            step_s.append(token_s[-1] + draft_s(num_drafting) / num_drafting)
            num_rows += num_drafting
        for each in aims:
            worth = len(aims) * sum(each.acceptance**depth for depth in range(each.length + 1)) / round_s
            each.prices = [worth * price for price in step_s]
            each.target_prices = [worth * price for price in token_s]

    def _reading_s(self, request: RequestDraftLength) -> float:
        """Return what a round with a draft costs because the draft has to read what it does not know.

        That is shared by the rounds of the rest of the answer, which is expected to be as long as the answer
        so far, as far as the request allows.
        """
        if not request.num_unread:
            return 0.0
        rest = min(max(request.num_output, _LEAST_REST), request.num_remaining)
        return self._draft_times.seconds(request.num_unread) * (1 + self.acceptance.mean) / rest


def _gains(acceptance: float, max_draft_len: int) -> list[float]:
    """Return by how much each further token raises the logarithm of the tokens expected of a round."""
    power, expected, gains = 1.0, 1.0, []
    for _ in range(max_draft_len):
        power *= acceptance
        gains.append(math.log1p(power / expected))
        expected += power
    return gains


class RequestDraftLength:
    """Decides the draft length of one request, round by round.

    Attributes:
        acceptance: Acceptance of the draft model's tokens.
        lookup: Continuations found in the prediction, the request's text and earlier answers.
        max_draft_len: Upper limit, also of tokens that a grammar forces.
        num_output: Output tokens so far.
        num_remaining: Most output tokens that may follow.
        num_unread: Known tokens that the draft has not read.

    Args:
        lengths: The controller.
        lookup: See the attribute.
        num_unread: See the attribute.
        sees_gaps: See ``DraftLengths.begin``.
    """

    def __init__(
        self, lengths: DraftLengths, lookup: LookupDraft, num_unread: int, *, sees_gaps: bool
    ) -> None:
        self.acceptance = lengths.acceptance
        self.lookup = lookup
        self.max_draft_len = lengths.max_draft_len
        self.num_output = 0
        self.num_remaining: float = math.inf
        self.num_unread = num_unread
        self._lengths = lengths
        self._sees_gaps = sees_gaps
        self._is_refused = False

    @property
    def uses_lookup(self) -> bool:
        """Whether the next round looks its draft up: that promises more than the draft model."""
        return self._is_refused or (self._sees_gaps and self.lookup.rate > self.acceptance.mean)

    @property
    def expected_acceptance(self) -> float:
        """Probability that the next draft token is accepted."""
        return self.lookup.rate if self.uses_lookup else self.acceptance.mean

    def next_round(self, num_remaining: int) -> DraftPlan:
        """Return what to draft in the next round."""
        self.num_remaining = num_remaining
        aim = self._lengths.aim(self)
        limit = min(self.max_draft_len, num_remaining - 1)
        length = min(aim.length, limit)
        if length < 1:
            return NO_DRAFT
        if self.uses_lookup:
            return DraftPlan(0, None, lambda drafted: self.lookup.propose(length))
        if aim.is_lookup:  # no longer: this round began before that could be known
            return NO_DRAFT
        if not self._sees_gaps:
            return all_of(length)
        if self._lengths.in_one_pass:
            return DraftPlan(length, lambda gap: True, lambda drafted: self._verified(drafted, aim))
        return DraftPlan(limit, self._above(aim.prices), lambda drafted: self._verified(drafted, aim))

    def num_alone(self, num_remaining: int) -> int:
        """Return all remaining tokens: the stream is closed as soon as drafting pays."""
        return num_remaining

    def note_refusal(self) -> None:
        """Only look drafts up from now on: the draft model refuses this request."""
        self._is_refused = True

    def observe(self, proposal: Proposal, token_ids: TokenIds) -> None:
        """Learn from a round: its draft tokens, verified or not, and its output."""
        if self._sees_gaps:
            self.lookup.append(token_ids)
        self.num_output += len(token_ids)
        drafted = proposal.drafted
        if drafted is None:
            self.num_unread += len(token_ids)
            if self.num_output > len(token_ids):  # the first round never drafts
                self.acceptance.forget()
            return
        self.num_unread = 0
        token_ids = token_ids[proposal.num_forced :]
        num_accepted = count_accepted(drafted.token_ids, token_ids)
        gaps = [None] * len(drafted.token_ids) if drafted.gaps is None else drafted.gaps.tolist()
        self.acceptance.observe(gaps[: len(token_ids)], num_accepted)

    def end(self) -> None:
        """Record that the request has ended."""
        self._lengths.end(self)

    def _above(self, prices: list[float]) -> KeepDrafting:
        so_far, count, following = 1.0, 0, self.acceptance.mean  # acceptance of all tokens so far

        def keep_drafting(gap: float) -> bool:
            nonlocal so_far, count
            so_far *= self.acceptance.rate(gap)
            count += 1
            return count < len(prices) and so_far * following >= prices[count]

        return keep_drafting

    def _verified(self, drafted: Output | None, aim: Aim) -> Proposal:
        """Return the draft's tokens without those at the end that are not worth verifying."""
        if drafted is None or drafted.gaps is None:
            return Proposal(NO_TOKENS, drafted)
        accepted = accumulate(map(self.acceptance.rate, drafted.gaps.tolist()), mul)
        worth = takewhile(lambda each: each[0] >= each[1], zip(accepted, aim.target_prices, strict=False))
        return Proposal(drafted.token_ids[: len(list(worth))], drafted)
