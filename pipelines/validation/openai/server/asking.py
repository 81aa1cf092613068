"""Ask many questions with several concurrent requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pipelines.errors import DraftproofError

_Question = TypeVar("_Question")
_Result = TypeVar("_Result")


def ask_each(
    ask: Callable[[_Question], _Result],
    questions: Sequence[_Question],
    num_at_once: int,
    on_answer: Callable[[int], None],
) -> list[_Result | DraftproofError]:
    """Ask all questions with so many concurrent requests.

    Args:
        ask: Returns an answer, or raises a DraftproofError.
        questions: What to ask.
        num_at_once: Number of concurrent requests.
        on_answer: Called with the number of answers so far.

    Returns:
        Answers, or errors, in the order of the questions.
    """
    pool = ThreadPoolExecutor(num_at_once)
    try:
        futures = [pool.submit(ask, question) for question in questions]
        answers: list[_Result | DraftproofError] = []
        for future in futures:
            error = future.exception()
            if error is not None and not isinstance(error, DraftproofError):
                raise error
            answers.append(future.result() if error is None else error)
            on_answer(len(answers))
        return answers
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
