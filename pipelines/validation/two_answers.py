"""Holds two answers side by side around their first difference, for reports."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Side:
    """One token of one answer; all None or "" after its end.

    Attributes:
        token_id: Id of the token.
        text: Text of the token; "" without a vocabulary.
        log_prob: Log probability, or None if the answer has none.
    """

    token_id: int | None
    text: str
    log_prob: float | None


@dataclass(frozen=True)
class Line:
    """One output position.

    Attributes:
        position: Output position, from 0.
        expected: Token of the target alone.
        actual: Token of the other answer.
        differs: Whether the tokens differ.
        is_first: Whether this is the first difference.
    """

    position: int
    expected: Side
    actual: Side
    differs: bool
    is_first: bool


@dataclass(frozen=True)
class SideBySide:
    """A finding in a form for people.

    Attributes:
        asked: Description of the pass.
        prompt_id: Name of the prompt.
        prompt: Text that was sent.
        parameters: Other parameters of the request.
        what: Sentence that describes the difference and its size.
        common: Common start of both answers as text, or as token ids.
        lines: Lines from the first difference on; empty if there is only one answer, or if the difference is
            in the prompt's log probabilities.
        alternatives: Log probabilities of the target's likeliest tokens at the first difference.
    """

    asked: str
    prompt_id: str
    prompt: str
    parameters: str
    what: str
    common: str
    lines: tuple[Line, ...]
    alternatives: tuple[Side, ...]

    def as_document(self) -> dict[str, Any]:
        """Return the finding, ready for JSON."""
        return asdict(self)
