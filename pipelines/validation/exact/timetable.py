"""Choose how long answers are, and how many rounds of passes there is time for.

A few passes show the speed of the server. Then the length of the answers is chosen such that the rounds that
a proof needs end in their time, and further passes fill the time that is left.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator

from pipelines.bench.reporting.rates import prompts_needed
from pipelines.client import CompletionRequest
from pipelines.time_left import duration
from pipelines.validation.exact.plan import (
    NUM_COMBINATIONS,
    NUM_SPECULATIVE,
    Pass,
    Portion,
    ProofPlan,
    Question,
    pass_of,
    pool_of,
    questions_of,
)
from pipelines.validation.exact.verdict import CONFIDENCE
from pipelines.validation.size import Size
from pipelines.validation.stopping import stop, stop_error

NUM_MEASURED = 4
"""Passes after which the speed of the server is known."""

NUM_ROUNDS = 4
"""Rounds of a proof, so that no pass takes much of its time; a quick one has one."""

_FEW = 3  # prompts of a pass
_RESERVE = 0.1  # of the time that is left, for passes that are slower than those before
_SHARE_FOR_LENGTH = 0.8  # of the time; further passes take the rest
_END = 0.1  # of all time, because a single pass may take several times as long as it should


class Timetable:
    """Yields the passes of a proof with their questions, one when the pass before it has ended.

    Args:
        plan: Plan of the proof.
        size: What the user chose.
        ends_at_s: Clock time at which the proof ends, in seconds.
        nonce: Text that no earlier run on this server used.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        plan: ProofPlan,
        size: Size,
        ends_at_s: float,
        nonce: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.num_begun = 0
        num_rounds = 1 if size.is_quick else NUM_ROUNDS
        self._num_least = self.num_passes = num_rounds * NUM_COMBINATIONS
        # A whole round of the longest draft follows the first token.
        longest_draft = len(plan.fixed_lengths.requested) - 1
        self.max_tokens = size.max_tokens or min(longest_draft + 2, plan.most_tokens)
        self._plan, self._size, self._nonce = plan, size, nonce
        self._ends_at_s, self._clock = ends_at_s, clock
        self._end_s = _END * (ends_at_s - clock())
        num_needed = max(prompts_needed(plan.max_rate, CONFIDENCE), size.num_prompts or 0)
        num_greedy = num_rounds * NUM_SPECULATIVE // min(2, len(plan.kinds))  # passes; as many with a seed
        self._num_prompts = max(_FEW, math.ceil(num_needed / num_greedy))
        of_kind = self._num_prompts * NUM_SPECULATIVE // len(plan.kinds)  # in a round
        num_rounds = math.ceil(len(pool_of(plan, plan.kinds[0])) / of_kind)
        self._num_most = max(self._num_least, num_rounds * NUM_COMBINATIONS)
        self._seconds = self._work = 0.0
        self._answered: set[CompletionRequest] = set()

    @property
    def left_s(self) -> float:
        """Seconds that the passes take which have not begun; at most, and at first, those that are left."""
        left_s = self._ends_at_s - self._clock()
        return min(left_s, self._rest_s(self.num_passes)) if self._work else left_s

    def __iter__(self) -> Iterator[tuple[Pass, tuple[Question, ...]]]:
        """Yield each pass with its questions; none once the proof was stopped."""
        firsts: Counter[tuple[str, str]] = Counter()
        while True:
            if self.num_begun == NUM_MEASURED and math.isfinite(self._ends_at_s):
                self._choose_length()
            if self.num_begun >= NUM_MEASURED:
                self._choose_passes()
            if stop_error() or self.num_begun == self.num_passes:
                return
            asked = pass_of(self._plan, self.num_begun)
            turn = asked.model, asked.kind  # all models begin with the same prompts
            portion = Portion(firsts[turn], self._num_prompts, self.max_tokens)
            questions = questions_of(self._plan, asked, portion, self._nonce)
            firsts[turn] += self._num_prompts
            self.num_begun += 1
            began_s = self._clock()
            yield asked, questions
            self._seconds += self._clock() - began_s
            new = {question.request for question in questions} - self._answered
            self._work += _work(len(new), len(questions), asked, self.max_tokens)
            self._answered |= new

    @property
    def _room_s(self) -> float:
        return (1 - _RESERVE) * (self._ends_at_s - self._clock() - self._end_s)

    def _choose_length(self) -> None:
        if not self._size.max_tokens:
            # Short answers take longer for each token, so this is rather too short; passes fill the time.
            wanted = self.max_tokens * _SHARE_FOR_LENGTH * self._room_s / self._rest_s(self._num_least)
            self.max_tokens = max(self.max_tokens, min(self._plan.most_tokens, int(wanted)))
        rest_s = self._rest_s(self._num_least)
        if rest_s > self._ends_at_s - self._clock():
            self._refuse(rest_s)

    def _choose_passes(self) -> None:
        """Ask all prompts, or those for which there is time."""
        self.num_passes = max(self._num_least, self.num_begun)
        rest_s = self._rest_s(self.num_passes)
        while self.num_passes < self._num_most:
            rest_s += self._work_of(self.num_passes) * self._seconds / self._work
            if rest_s > self._room_s:
                return
            self.num_passes += 1

    def _rest_s(self, num_passes: int) -> float:
        """Estimate the seconds of the passes that have not begun, if there are so many in all."""
        numbers = range(self.num_begun, num_passes)
        return sum(map(self._work_of, numbers)) * self._seconds / self._work

    def _work_of(self, number: int) -> float:
        asked = pass_of(self._plan, number)
        num_questions = max(self._num_prompts, asked.num_at_once)
        num_new = num_questions if asked.is_cold else self._num_prompts
        return _work(num_new, num_questions, asked, self.max_tokens)

    def _refuse(self, rest_s: float) -> None:
        lacking_s = (rest_s / (1 - _RESERVE) - (self._ends_at_s - self._clock())) / (1 - _END)
        minutes = math.ceil((self._size.minutes or 0) + lacking_s / 60)
        stop(
            f"{self.num_passes} passes of {self._num_prompts} prompts and {self.max_tokens} tokens take "
            f"{duration(rest_s)} more at the speed of this server",
            f"{self._size.minutes} min in all",
            f"give it --minutes {minutes}"
            + ("" if self._size.is_quick else ", or --quick, which shows less"),
        )


def _work(num_new: int, num_questions: int, asked: Pass, max_tokens: int) -> float:
    """Estimate the work of a pass: the target alone answers new questions, and a batch shares its steps."""
    return (num_new + num_questions / asked.num_at_once) * max_tokens
