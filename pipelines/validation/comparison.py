"""Two answers to one request: equal, or where they part."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass

from pipelines.client import CompletionRequest, Generation


@dataclass(frozen=True)
class Divergence:
    """The first place where an answer differs from the target's own.

    Attributes:
        kind: "token", "length", "finish_reason", "text", "seed" or "log_probs".
        position: Output position, from 0; the length of the shorter answer for "length", of both for
            "finish_reason", "text" and "seed".
        expected: Token, length, reason, text, seed or log probabilities of the target alone.
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


def first_divergence(
    expected: Generation, actual: Generation, request: CompletionRequest | None = None
) -> Divergence | None:
    """Compare token ids, then why the answer ended, the text, the seed and log probabilities, in bits.

    Equal ids with different texts would be a fault of the detokenizer, not of the loop, but a fault.

    Args:
        expected: Of the target alone.
        actual: The other.
        request: What both were asked; it says which seed they must name and which log probabilities they
            must hold. None: seeds are not looked at.

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
    seed = request.seed if request else None
    if seed is not None and not expected.seed == actual.seed == seed:
        return Divergence("seed", shorter, str(expected.seed), str(actual.seed))
    return _first_log_prob(expected, actual, request)


def _first_log_prob(
    expected: Generation, actual: Generation, request: CompletionRequest | None
) -> Divergence | None:
    wanted = request.num_log_probs if request else None
    if wanted is not None:
        # Two answers without any would be equal, and nothing compared.
        due = _held(expected.output_ids, expected.output_ids if wanted else ())
        held = [_held(answer.log_probs, answer.top_log_probs) for answer in (expected, actual)]
        if held != [due, due]:
            return Divergence("log_probs", 0, held[0], held[1])
    for position in range(len(expected.output_ids)):
        own, other = _log_probs(expected, position), _log_probs(actual, position)
        if own != other:
            return Divergence("log_probs", position, own, other)
    return None


def _held(log_probs: Sized, alternatives: Sized) -> str:
    return f"{len(log_probs)} log probs, alternatives at {len(alternatives)} positions"


def _log_probs(answer: Generation, position: int) -> str:
    """Everything that came for an output position. Two numbers are spelled alike only if their bits are."""
    own = " ".join(repr(log_prob) for log_prob in answer.log_probs[position : position + 1])
    alternatives = [
        f"{token_id}: {log_prob!r}"
        for at_position in answer.top_log_probs[position : position + 1]
        for token_id, log_prob in at_position
    ]
    return f"{own} ({', '.join(alternatives)})" if alternatives else own
