"""Two answers to one request: equal, or where they part."""

from __future__ import annotations

from dataclasses import dataclass

from pipelines.client import Generation


@dataclass(frozen=True)
class Divergence:
    """The first place where an answer differs from the target's own.

    Attributes:
        kind: "token", "length", "finish_reason" or "text".
        position: Output position, from 0; the length of the shorter answer for "length", of both for
            the last two kinds.
        expected: Token, length, reason or text of the target alone.
        actual: The same of the other answer.
        expected_id: The target's token at ``position``; None where its answer has ended.
        actual_id: The other answer's token there.
    """

    kind: str
    position: int
    expected: str
    actual: str
    expected_id: int | None = None
    actual_id: int | None = None


def first_divergence(expected: Generation, actual: Generation) -> Divergence | None:
    """Compare token ids, then why the answer ended, then the text.

    Equal ids with different texts would be a fault of the detokenizer, not of the loop, but a fault.

    Returns:
        None if the answers are equal.
    """
    expected_ids, actual_ids = expected.output_ids, actual.output_ids
    # Lengths are looked at before content: a pairwise walk alone would call a truncated answer equal.
    shorter = min(len(expected_ids), len(actual_ids))
    for position in range(shorter):
        pair = expected_ids[position], actual_ids[position]
        if pair[0] != pair[1]:
            return Divergence("token", position, str(pair[0]), str(pair[1]), *pair)
    if len(expected_ids) != len(actual_ids):
        return Divergence(
            "length",
            shorter,
            str(len(expected_ids)),
            str(len(actual_ids)),
            expected_ids[shorter] if len(expected_ids) > shorter else None,
            actual_ids[shorter] if len(actual_ids) > shorter else None,
        )
    if expected.finish_reason != actual.finish_reason:
        return Divergence("finish_reason", shorter, expected.finish_reason, actual.finish_reason)
    if expected.text != actual.text:
        return Divergence("text", shorter, expected.text, actual.text)
    return None
