"""Ask a server many questions, so many at once, and show how many answers there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from pipelines.command_line.options import Progress
from pipelines.errors import DraftproofError
from pipelines.validation.stopping import stoppable

OnAnswer = Callable[[str, int], None]
"""(what is asked, number of its answers so far), for progress."""

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
        on_answer: Called after each answer.

    Returns:
        Answers, or errors, in the order of the questions.
    """
    pool = ThreadPoolExecutor(num_at_once)
    try:
        futures = [pool.submit(stoppable(ask), question) for question in questions]
        answers: list[_Result | DraftproofError] = []
        for future in futures:
            error = future.exception()
            if error is not None and not isinstance(error, DraftproofError):
                raise error
            answers.append(future.result() if error is None else error)
            on_answer(name, len(answers))
        return answers
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def shown_progress() -> Iterator[OnAnswer]:
    """Show in the block what is asked and how many answers there are, on a terminal."""
    line = Progress()
    yield lambda name, num_done: line.show(f"{name}: {num_done}")
    line.clear()
