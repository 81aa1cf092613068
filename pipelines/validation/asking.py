"""Ask a server many questions, so many at once, and show how many answers there are and how long it takes."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pipelines.errors import DraftproofError
from pipelines.time_left import TimeLeft, duration
from pipelines.validation.stopping import stoppable

OnAnswer = Callable[[str, int, int], None]
"""(what is asked, number of its answers so far, number of all of them), for progress."""

_Question = TypeVar("_Question")
_Result = TypeVar("_Result")


def ask_each(
    name: str,
    ask: Callable[[_Question], _Result],
    questions: Sequence[_Question],
    num_at_once: int,
    on_answer: OnAnswer,
) -> list[_Result | DraftproofError]:
    """Ask all questions with so many concurrent requests.

    Args:
        name: What is asked, for progress.
        ask: Returns an answer, or raises a DraftproofError.
        questions: What to ask.
        num_at_once: Number of concurrent requests.
        on_answer: Called before the first and after each answer.

    Returns:
        Answers, or errors, in the order of the questions.
    """
    pool = ThreadPoolExecutor(num_at_once)
    on_answer(name, 0, len(questions))
    try:
        futures = [pool.submit(stoppable(ask), question) for question in questions]
        answers: list[_Result | DraftproofError] = []
        for future in futures:
            error = future.exception()
            if error is not None and not isinstance(error, DraftproofError):
                raise error
            answers.append(future.result() if error is None else error)
            on_answer(name, len(answers), len(questions))
        return answers
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


class Stages:
    """Prints a line when a stage of the questions begins, and every few seconds how much of it is done.

    It is called as ``OnAnswer``.

    Args:
        num_stages: Number of stages; None if it is not known.
        ends_at_s: Clock time at which all end, in seconds.
        clock: Seconds, monotonic.
    """

    def __init__(
        self, num_stages: int | None, ends_at_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._num_stages, self._num_begun = num_stages, 0
        self._ends_at_s, self._clock = ends_at_s, clock
        self._began_s = clock()
        self._stage = TimeLeft(0, _print, str)

    def __call__(self, name: str, num_done: int, num_all: int) -> None:
        """Count an answer, or begin a stage."""
        if num_done:
            self._stage.advance(1)
            return
        left_s = self._ends_at_s - self._clock()
        if self._num_begun and self._num_stages:  # stages take about as long as those before
            mean_s = (self._clock() - self._began_s) / self._num_begun
            left_s = min(left_s, mean_s * (self._num_stages - self._num_begun))
        self._num_begun += 1
        place = f"{self._num_begun}/{self._num_stages}" if self._num_stages else f"{self._num_begun}"
        left = f", {duration(max(0.0, left_s))} left" if math.isfinite(left_s) else ""
        _print(f"[{place}{left}] {name}: {num_all} questions")
        self._stage = TimeLeft(num_all, _print, lambda done: f"{name}: {done:.0f} of {num_all}")


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
