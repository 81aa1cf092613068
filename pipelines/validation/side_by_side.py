"""Two answers laid side by side around the place where they part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipelines.client import Generation
from pipelines.text.vocabulary import Vocabulary
from pipelines.validation.margin import Explanation
from pipelines.validation.proof import Finding

_NUM_AFTER = 24  # tokens shown from the first difference on


@dataclass(frozen=True)
class Side:
    """One token of one answer; all None or "" where the answer has ended.

    Attributes:
        token_id: The token.
        text: What it spells; "" where no vocabulary is at hand.
        log_prob: As the answer gave it, or None.
    """

    token_id: int | None
    text: str
    log_prob: float | None


@dataclass(frozen=True)
class Line:
    """One output position.

    Attributes:
        position: From 0.
        expected: The target's.
        actual: The other answer's.
        differs: Whether the tokens differ.
        is_first: Whether this is the place where the answers part.
    """

    position: int
    expected: Side
    actual: Side
    differs: bool
    is_first: bool


@dataclass(frozen=True)
class SideBySide:
    """A finding, ready to be read.

    Attributes:
        asked: The way of asking.
        prompt_id: Names the prompt.
        prompt: The text as it was sent.
        parameters: What the request set besides.
        what: In one sentence what differs, and by how much.
        common: Text that both answers begin with, or its token ids.
        lines: From the first difference on; empty where there is only one answer.
        alternatives: Log probabilities of the target's likeliest tokens at the place.
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
        """Ready for JSON."""
        return asdict(self)


def side_by_side(finding: Finding, explanation: Explanation, vocabulary: Vocabulary | None) -> SideBySide:
    """Lay a finding out.

    Args:
        finding: What differs.
        explanation: From ``margin.explain``.
        vocabulary: To spell tokens; None if it is not on this machine.
    """
    lines: tuple[Line, ...] = ()
    common = ""
    if finding.divergence is not None and finding.actual is not None:
        first = finding.divergence.position
        common = _text_of(finding.expected.output_ids[:first], vocabulary)
        longer = max(len(finding.expected.output_ids), len(finding.actual.output_ids))
        lines = tuple(
            _line(finding.expected, finding.actual, position, first, vocabulary)
            for position in range(first, min(longer, first + _NUM_AFTER))
        )
    return SideBySide(
        asked=str(finding.asked),
        prompt_id=finding.prompt.prompt_id,
        prompt=finding.request.prompt,
        parameters=_parameters(finding),
        what=what_differs(finding, explanation, vocabulary),
        common=common,
        lines=lines,
        alternatives=tuple(
            Side(token_id, spell(token_id, vocabulary), log_prob)
            for token_id, log_prob in explanation.alternatives
        ),
    )


def spell(token_id: int | None, vocabulary: Vocabulary | None) -> str:
    """A token's text, with escapes for bytes that are no UTF-8; "" if that is not known."""
    return "" if token_id is None or vocabulary is None else _text_of([token_id], vocabulary)


def what_differs(finding: Finding, explanation: Explanation, vocabulary: Vocabulary | None) -> str:
    """Where an answer parts from the target's own, in one sentence."""
    divergence = finding.divergence
    if divergence is None:
        return f"failed where the target alone answered: {finding.error}"
    text = (
        f"first difference ({divergence.kind}) at output position {divergence.position}: "
        f"the target alone gives {divergence.expected!r}, this answer {divergence.actual!r}"
    )
    texts = [spell(token_id, vocabulary) for token_id in (divergence.expected_id, divergence.actual_id)]
    if any(texts):
        text += f"; {texts[0]!r} against {texts[1]!r}"
    if explanation.logit_margin is None:
        return f"{text}; logit margin not available: {explanation.why_no_margin}"
    return f"{text}; logit margin {explanation.logit_margin:.6g}"


def _line(
    expected: Generation, actual: Generation, position: int, first: int, vocabulary: Vocabulary | None
) -> Line:
    own, other = (_side(answer, position, vocabulary) for answer in (expected, actual))
    return Line(position, own, other, own.token_id != other.token_id, position == first)


def _side(answer: Generation, position: int, vocabulary: Vocabulary | None) -> Side:
    if position >= len(answer.output_ids):
        return Side(None, "", None)
    token_id = answer.output_ids[position]
    log_prob = answer.log_probs[position] if position < len(answer.log_probs) else None
    return Side(token_id, spell(token_id, vocabulary), log_prob)


def _text_of(token_ids: Sequence[int], vocabulary: Vocabulary | None) -> str:
    if vocabulary is None:
        return " ".join(map(str, token_ids))
    return vocabulary.join(token_ids).decode("utf-8", errors="backslashreplace")


def _parameters(finding: Finding) -> str:
    default = type(finding.request)("")
    told = asdict(finding.request)
    del told["prompt"]
    return ", ".join(f"{name}={value}" for name, value in told.items() if value != getattr(default, name))
