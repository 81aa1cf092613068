"""Choose how much each pass asks, so that all passes end in their time.

The first passes ask the least and show the speed of the server. Then the length of the answers is chosen, and
before each further pass the number of its prompts, by the time that answers have taken so far and the time
that is left. If that is too short for the least of all passes, a quick proof leaves out the last ones.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator

from pipelines.bench.reporting.rates import prompts_needed
from pipelines.client import CompletionRequest
from pipelines.client.connection import SPECULATIVE
from pipelines.time_left import duration
from pipelines.validation.exact.plan import (
    Pass,
    Portion,
    ProofPlan,
    Question,
    num_core_passes,
    passes_of,
    pool_of,
    questions_of,
)
from pipelines.validation.exact.verdict import CONFIDENCE
from pipelines.validation.size import Size
from pipelines.validation.stopping import stop, stop_error

NUM_MEASURED = 4
"""Passes after which the speed of the server is known."""

_FEW = 3  # prompts of a pass
_RESERVE = 0.1  # of the time that is left, for passes that are slower than those before
_SHARE_FOR_LENGTH = 0.8  # of the time; more prompts than the least take the rest
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
        self.passes = list(passes_of(plan))
        self.num_begun = 0
        self.num_left_out = 0
        # A whole round of the longest draft follows the first token.
        longest_draft = max(length.num_draft_tokens or 0 for length in plan.draft_lengths)
        self.max_tokens = size.max_tokens or min(longest_draft + 2, plan.most_tokens)
        self._plan, self._size, self._nonce = plan, size, nonce
        self._ends_at_s, self._clock = ends_at_s, clock
        self._end_s = _END * (ends_at_s - clock())
        self._num_least = num_core_passes(plan) if size.is_quick else len(self.passes)
        num_needed = max(prompts_needed(plan.max_rate, CONFIDENCE), size.num_prompts or 0)
        self._few = self._num_prompts = max(_FEW, self._prompts_for(num_needed))
        self._seconds = self._work = 0.0
        self._answered: set[CompletionRequest] = set()

    @property
    def left_s(self) -> float:
        """Seconds that the passes take which have not begun; at most, and at first, those that are left."""
        left_s = self._ends_at_s - self._clock()
        return min(left_s, self._rest_s(self._num_prompts)) if self._work else left_s

    def __iter__(self) -> Iterator[tuple[Pass, tuple[Question, ...]]]:
        """Yield each pass with its questions; none once the proof was stopped."""
        firsts: Counter[tuple[str, str]] = Counter()
        while True:
            if self.num_begun >= NUM_MEASURED and math.isfinite(self._ends_at_s):
                self._choose()
            if stop_error() or self.num_begun == len(self.passes):
                return
            asked = self.passes[self.num_begun]
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

    def _prompts_for(self, num_needed: int) -> int:
        """Return the prompts of a pass with which the fewest passes ask so many greedily, and with a seed."""
        least = self.passes[: self._num_least]
        kinds = Counter(asked.kind for asked in least if asked.model == SPECULATIVE)
        return math.ceil(num_needed / min(2, len(kinds)) / min(kinds.values()))

    def _choose(self) -> None:
        """Choose answers' length after the measured passes, and always prompts and passes."""
        left_s = self._ends_at_s - self._clock()
        room_s = (1 - _RESERVE) * (left_s - self._end_s)
        if self.num_begun == NUM_MEASURED and not self._size.max_tokens:
            # Short answers take longer for each token, so this is rather too short; prompts fill the time.
            wanted = self.max_tokens * _SHARE_FOR_LENGTH * room_s / self._rest_s(self._few)
            self.max_tokens = max(self.max_tokens, min(self._plan.most_tokens, int(wanted)))
        while len(self.passes) > max(self._num_least, self.num_begun) and self._rest_s(self._few) > room_s:
            self.passes.pop()
            self.num_left_out += 1
        if self.num_begun == NUM_MEASURED and self._rest_s(self._few) > left_s:
            self._refuse()
        most = max(len(pool_of(self._plan, kind)) for kind in self._plan.kinds)
        numbers = range(self._few, most + 1)
        self._num_prompts = max((each for each in numbers if self._rest_s(each) <= room_s), default=self._few)

    def _rest_s(self, num_prompts: int) -> float:
        """Estimate the seconds of the passes that have not begun, if they ask so many prompts."""
        work = 0.0
        for asked in self.passes[self.num_begun :]:
            num_questions = max(num_prompts, asked.num_at_once)
            num_new = num_questions if asked.is_cold else num_prompts
            work += _work(num_new, num_questions, asked, self.max_tokens)
        return work * self._seconds / self._work

    def _refuse(self) -> None:
        rest_s = self._rest_s(self._few)
        lacking_s = (rest_s / (1 - _RESERVE) - (self._ends_at_s - self._clock())) / (1 - _END)
        minutes = math.ceil((self._size.minutes or 0) + lacking_s / 60)
        stop(
            f"{len(self.passes)} passes of at least {self._few} prompts and {self.max_tokens} tokens take "
            f"{duration(rest_s)} more at the speed of this server",
            f"{self._size.minutes} min in all",
            f"give it --minutes {minutes}"
            + ("" if self._size.is_quick else ", or --quick, which shows less"),
        )


def _work(num_new: int, num_questions: int, asked: Pass, max_tokens: int) -> float:
    """Estimate the work of a pass: the target alone answers new questions, and a batch shares its steps."""
    return (num_new + num_questions / asked.num_at_once) * max_tokens
