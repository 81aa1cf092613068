"""Choose how long answers are, and how many passes there is time for.

A few passes show the speed of the server. Then the length of the answers is chosen such that the passes that
a proof needs end in their time, and further ones fill the time that is left, until all prompts were asked.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from pipelines.bench.reporting.rates import prompts_needed
from pipelines.time_left import duration
from pipelines.validation.exact.plan import (
    NUM_COMBINATIONS,
    NUM_SPECULATIVE,
    Pass,
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
"""Rounds of a proof, so that no pass takes much of its time; a quick one needs only the first."""

_FEW = 3  # prompts of a pass
_SHARE_FOR_LENGTH = 0.8  # of the time; further passes take the rest
_RESERVE = 0.12  # of all time, because a single pass may take several times as long as it should


class Timetable:
    """Yields the passes of a proof with their questions, one when the pass before it has ended.

    Args:
        plan: Plan of the proof.
        size: What the user chose.
        ends_at_s: Clock time at which the proof ends, in seconds.
        nonce: Text that no earlier run on this server used.
        clock: Seconds, monotonic.

    Attributes:
        num_most: Most passes that it yields.
        max_tokens: Most output tokens of an answer.
    """

    def __init__(
        self,
        plan: ProofPlan,
        size: Size,
        ends_at_s: float,
        nonce: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        num_rounds = 1 if size.is_quick else NUM_ROUNDS
        self._num_least = num_rounds * NUM_COMBINATIONS
        limits = plan.limits
        # A whole round of the longest draft follows the first token.
        self.max_tokens = size.max_tokens or min(limits.max_draft_len + 2, limits.most_tokens)
        self._plan, self._size, self._nonce = plan, size, nonce
        self._clock, self._ends_at_s = clock, ends_at_s
        self._full_at_s = ends_at_s - _RESERVE * (ends_at_s - clock())
        num_needed = max(prompts_needed(plan.max_rate, CONFIDENCE), size.num_prompts or 0)
        num_greedy = num_rounds * NUM_SPECULATIVE // min(2, len(limits.kinds))  # passes; as many with a seed
        self._num_prompts = max(_FEW, math.ceil(num_needed / num_greedy))
        num_of_kind = self._num_prompts * NUM_SPECULATIVE // len(limits.kinds)  # in a round
        num_rounds = max(num_rounds, math.ceil(len(pool_of(plan, limits.kinds[0])) / num_of_kind))
        self.num_most = num_rounds * NUM_COMBINATIONS
        self._began_s = clock()
        self._work = 0.0

    def __iter__(self) -> Iterator[tuple[Pass, tuple[Question, ...]]]:
        """Yield each pass with its questions; none once the proof was stopped."""
        firsts: Counter[tuple[str, str]] = Counter()
        for number in range(self.num_most):
            if number == NUM_MEASURED and math.isfinite(self._ends_at_s):
                self._choose_length()
            is_full = self._work and self._clock() + self._seconds_of([number]) > self._full_at_s
            if stop_error() or (number >= self._num_least and is_full):
                return
            asked = pass_of(self._plan, number)
            turn = asked.model, asked.kind  # all models begin with the same prompts
            size = firsts[turn], self._num_prompts, self.max_tokens
            questions = questions_of(self._plan, asked, *size, self._nonce)
            firsts[turn] += len(questions)
            yield asked, questions
            self._work += self._work_of(number)

    def _choose_length(self) -> None:
        """Choose how long answers are such that all rounds end in time; refuse if the needed ones do not."""
        left_s = self._full_at_s - self._clock()
        if not self._size.max_tokens:
            all_s = self._seconds_of(range(NUM_MEASURED, NUM_ROUNDS * NUM_COMBINATIONS))
            wanted = self.max_tokens * _SHARE_FOR_LENGTH * left_s / all_s
            self.max_tokens = max(self.max_tokens, min(self._plan.limits.most_tokens, int(wanted)))
        if (least_s := self._seconds_of(range(NUM_MEASURED, self._num_least))) > left_s:
            minutes = math.ceil((self._clock() - self._began_s + least_s) / (1 - _RESERVE) / 60)
            stop(
                f"{self._num_least} passes of {self._num_prompts} prompts and {self.max_tokens} tokens take "
                f"{duration(least_s)} more at the speed of this server; a proof has {self._size.minutes} min",
                f"give it --minutes {minutes}"
                + ("" if self._size.is_quick else ", or --quick, which shows less"),
            )

    def _seconds_of(self, numbers: Iterable[int]) -> float:
        return sum(map(self._work_of, numbers)) * (self._clock() - self._began_s) / self._work

    def _work_of(self, number: int) -> float:
        """Estimate the work of a pass: a batch shares its steps, and the target alone answers them too."""
        num_at_once = pass_of(self._plan, number).num_at_once
        return max(self._num_prompts, num_at_once) * (1 + 1 / num_at_once) * self.max_tokens
