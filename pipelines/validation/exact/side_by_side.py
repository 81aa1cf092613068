"""Show two answers side by side around their first difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from pipelines.client import Generation
from pipelines.text.vocabulary import Vocabulary
from pipelines.validation.audit.margin import Explanation
from pipelines.validation.exact.proof import Finding
from pipelines.validation.two_answers import Line, Side, SideBySide

_NUM_AFTER = 24  # tokens shown after the first difference


def side_by_side(finding: Finding, explanation: Explanation, vocabulary: Vocabulary | None) -> SideBySide:
    """Put the two answers of a finding side by side.

    Args:
        finding: Finding to show.
        explanation: Explanation from ``margin.explain``.
        vocabulary: Vocabulary of the target; None if it is not on this machine.
    """
    lines: tuple[Line, ...] = ()
    common = ""
    is_in_prompt = finding.divergence is not None and finding.divergence.kind == "prompt_log_probs"
    if finding.divergence is not None and finding.actual is not None and not is_in_prompt:
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
        prompt=finding.request.prompt or f"token ids {list(finding.request.prompt_ids)}",
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
    """Return a token's text with escapes for invalid UTF-8; "" if it is unknown."""
    return "" if token_id is None or vocabulary is None else _text_of([token_id], vocabulary)


def what_differs(finding: Finding, explanation: Explanation, vocabulary: Vocabulary | None) -> str:
    """Describe in one sentence where an answer differs from the target's own."""
    divergence = finding.divergence
    if divergence is None:
        return f"failed where the target alone answered: {finding.error}"
    text = (
        f"first difference ({divergence.kind}) at {divergence.place}: "
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
