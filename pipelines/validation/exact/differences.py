"""Show two answers side by side around their first difference, with the logit margin of its two tokens.

A margin distinguishes a near tie from a wrong answer. The target alone answers again up to the difference
and returns the likeliest alternatives there. Their log probabilities come from the raw logits, so the
difference of two is the logit margin on that server, whatever its runtime.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from pipelines.client import Client, Generation
from pipelines.client.comparison import Divergence
from pipelines.client.connection import TARGET_ALONE
from pipelines.errors import DraftproofError
from pipelines.text.vocabulary import Vocabulary
from pipelines.validation.exact.proof import Finding
from pipelines.validation.exact.sampling_kinds import MAX_LOG_PROBS
from pipelines.validation.report import Line, Side, SideBySide
from pipelines.validation.stopping import stoppable

_NUM_AFTER = 24  # tokens shown after the first difference


def side_by_side(finding: Finding, explanation: Explanation, vocabulary: Vocabulary | None) -> SideBySide:
    """Put the two answers of a finding side by side.

    Args:
        finding: Finding to show.
        explanation: Explanation from ``explain``.
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
            Line(
                position,
                _side(finding.expected, position, vocabulary),
                _side(finding.actual, position, vocabulary),
            )
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
    if finding.actual is not None and len(finding.asked.draft_length.used) > 1:
        told["num_draft_tokens"] = finding.actual.draft_length
    return ", ".join(f"{name}={value}" for name, value in told.items() if value != getattr(default, name))


@dataclass(frozen=True)
class Explanation:
    """Explanation of the two tokens at a divergence.

    Attributes:
        logit_margin: Logit of the target's token less that of the other; None if it is unknown.
        why_no_margin: Why the margin is unknown; "" if it is known.
        alternatives: Ids and log probabilities of the target's likeliest tokens there.
    """

    logit_margin: float | None
    why_no_margin: str = ""
    alternatives: tuple[tuple[int, float], ...] = ()


def explain(finding: Finding, client: Client) -> Explanation:
    """Look up the two tokens of a divergence on the server that gave the answers."""
    divergence = finding.divergence
    if divergence is None:
        return Explanation(None, "there is no second answer")
    if divergence.kind not in ("token", "length"):
        return Explanation(None, "the tokens are equal")
    if divergence.expected_id is None:
        return Explanation(None, "the target's answer had ended")
    num_tokens = divergence.position + 1
    request = replace(
        finding.request,
        max_tokens=num_tokens,
        min_tokens=min(finding.request.min_tokens, num_tokens),
        num_log_probs=MAX_LOG_PROBS,
    )
    try:
        again = stoppable(client.generate)(request, TARGET_ALONE)
    except DraftproofError as error:
        return Explanation(None, f"the target did not answer again: {error}")
    if again.output_ids != finding.expected.output_ids[:num_tokens]:
        return Explanation(None, "the target's answer was different this time")
    return _margin(divergence, again)


def _margin(divergence: Divergence, again: Generation) -> Explanation:
    if not again.top_log_probs:
        return Explanation(None, "the server returns no log probabilities")
    alternatives = again.top_log_probs[-1]
    if divergence.actual_id is None:
        return Explanation(None, "the other answer had ended", alternatives)
    other = dict(alternatives).get(divergence.actual_id)
    if other is None:
        reason = f"the other token is not among the target's {len(alternatives)} likeliest"
        return Explanation(None, reason, alternatives)
    return Explanation(again.log_probs[-1] - other, alternatives=alternatives)
