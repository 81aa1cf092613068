"""Find the first difference of each answer from the reference, and show differences as a table.

Only the first difference counts, because after it the answers continue different texts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TypeVar

from pipelines.bench.reporting.section import Table
from pipelines.errors import (
    DraftproofError,
    RateLimitError,
    RequestCancelledError,
    RequestTimeoutError,
    ServerBusyError,
    ServerUnavailableError,
)

NO_ANSWER = (ServerUnavailableError, ServerBusyError, RateLimitError, RequestCancelledError)
"""Errors which mean that an answer is missing, not that it is wrong."""

LATE_OR_NO_ANSWER = (*NO_ANSWER, RequestTimeoutError)
"""The same where silence may be the limit of the request, rather than a server that hangs."""

END = "<end>"
"""Stands in a difference for a token behind the end of an answer."""

_NUM_LISTED = 20
_LONGEST_CELL = 60  # characters
_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Margin:
    """Margin between the two tokens at a difference.

    Attributes:
        log_prob_difference: Natural log probability of the reference's token less that of the other, given
            the common start; None if unknown. Of a token that is none of the alternatives, the least that it
            can be.
        why_unknown: Why it is unknown; "" if it is known.
    """

    log_prob_difference: float | None
    why_unknown: str = ""


@dataclass(frozen=True)
class Difference:
    """The first difference between two answers to one prompt.

    Attributes:
        prompt_id: Name of the prompt.
        place: Position, such as "token 12" or "character 48".
        expected: What the reference has there, shortened.
        actual: What the other answer has there, shortened.
        margin: Margin of the reference; None if the difference is not one of tokens, as after an error.
    """

    prompt_id: str
    place: str
    expected: str
    actual: str
    margin: Margin | None = None

    def __str__(self) -> str:
        return f"{self.place}: the target alone gives {self.expected}, this answer {self.actual}"

    @property
    def size(self) -> float | None:
        """Absolute margin; infinite if the difference is not one of tokens, None if it is unknown."""
        if self.margin is None:
            return math.inf
        known = self.margin.log_prob_difference
        return None if known is None else abs(known)


@dataclass(frozen=True)
class Comparison:
    """Answers to some questions, asked in one way, beside the reference.

    Attributes:
        differences: First difference of each answer, or None.
        missing: Indices of the questions that could not be compared.
    """

    differences: tuple[Difference | None, ...]
    missing: frozenset[int] = frozenset()


def compare_all(
    prompt_ids: Sequence[str],
    reference: Sequence[_Answer | DraftproofError],
    answers: Sequence[_Answer | DraftproofError],
    first_difference: Callable[[int, _Answer, _Answer], Difference | None],
    no_answer: tuple[type[DraftproofError], ...],
    of_failure: Margin | None = None,
) -> Comparison:
    """Compare answers with the reference; an error where the reference answered is a difference.

    Args:
        prompt_ids: Name of the prompt of each question.
        reference: Answers of the reference, or errors in place of them.
        answers: The answers to judge.
        first_difference: Compares two answers to the question with an index.
        no_answer: Errors in place of answers that are missing.
        of_failure: Margin of other errors; None if they are certainly faults.
    """
    differences: list[Difference | None] = []
    missing = set()
    for number, (prompt_id, own, other) in enumerate(zip(prompt_ids, reference, answers, strict=True)):
        difference = None
        if isinstance(own, DraftproofError) or isinstance(other, no_answer):
            missing.add(number)
        elif isinstance(other, DraftproofError):
            difference = Difference(prompt_id, "-", "an answer", f"error: {other.message}", of_failure)
        else:
            difference = first_difference(number, own, other)
        differences.append(difference)
    return Comparison(tuple(differences), frozenset(missing))


def common_length(first: Sequence[object], second: Sequence[object]) -> int:
    """Return at how many places, from the first on, two sequences are equal."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def excerpt(text: str, start: int) -> str:
    """Quote a text around the place of a difference."""
    return repr(text[max(0, start - 12) : start + 24])


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_CELL else f"{text[: _LONGEST_CELL - 3]}..."


def table_of(listed: Sequence[tuple[Difference, str]]) -> Table | None:
    """Show the first differences, each with its kind; None without differences."""
    has_margins = any(difference.margin for difference, _ in listed)
    rows: list[dict[str, object]] = []
    for difference, kind in listed[:_NUM_LISTED]:
        margin = difference.margin or Margin(None, "-")
        known = margin.log_prob_difference
        shown = margin.why_unknown if known is None else known
        rows.append(
            {
                "prompt": difference.prompt_id,
                "kind": kind,
                "position": difference.place,
                "expected": _short(difference.expected),
                "found": _short(difference.actual),
                **({"margin": shown} if has_margins else {}),
            }
        )
    if num_more := len(listed) - len(rows):
        rows.append({**dict.fromkeys(rows[0], ""), "prompt": f"and {num_more} more"})
    return Table.of(rows)
