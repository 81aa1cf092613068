"""Compare two answers to one request and find their first difference."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass

from pipelines.client import CompletionRequest, Generation
from pipelines.errors import (
    RateLimitError,
    RequestCancelledError,
    RequestTimeoutError,
    ServerBusyError,
    ServerUnavailableError,
)
from pipelines.wire.chunk import TopLogProbs

NO_ANSWER = (
    ServerUnavailableError,
    ServerBusyError,
    RateLimitError,
    RequestTimeoutError,
    RequestCancelledError,
)
"""Errors which mean that an answer is missing, not that it is wrong."""


@dataclass(frozen=True)
class Divergence:
    """First difference of an answer from the target's own.

    Attributes:
        kind: "token", "length", "finish_reason", "text", "seed", "log_probs" or "prompt_log_probs".
        position: Output position, from 0; the length of the shorter answer for "length", of both for
            "finish_reason", "text" and "seed". For "prompt_log_probs" the position in the prompt, from 0.
        expected: Token, length, reason, text, seed or log probabilities of the target alone.
        actual: The same of the other answer.
        expected_id: Token of the target alone at ``position``; None if its answer had ended.
        actual_id: Token of the other answer at ``position``; None if it had ended.
    """

    kind: str
    position: int
    expected: str
    actual: str
    expected_id: int | None = None
    actual_id: int | None = None

    @property
    def place(self) -> str:
        """The position in words."""
        part = "prompt" if self.kind == "prompt_log_probs" else "output"
        return f"{part} position {self.position}"


def first_divergence(
    expected: Generation, actual: Generation, request: CompletionRequest | None = None
) -> Divergence | None:
    """Compare token ids, finish reason, text, seed and log probabilities of answer and prompt, all exactly.

    Equal ids with different texts are a fault too, of the detokenizer.

    Args:
        expected: Answer of the target alone.
        actual: Other answer.
        request: Request of both answers, which determines the seed and the log probabilities that they must
            contain. None to skip the comparison of seeds.

    Returns:
        The first difference; None if the answers are equal.
    """
    expected_ids, actual_ids = expected.output_ids, actual.output_ids
    # The shorter length limits the comparison; different lengths are reported below.
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
    return _first_log_prob(expected, actual, request) or _first_prompt_log_prob(expected, actual)


def _first_log_prob(
    expected: Generation, actual: Generation, request: CompletionRequest | None
) -> Divergence | None:
    wanted = request.num_log_probs if request else None
    if wanted is not None:
        # Two answers without log probabilities would be equal without a comparison.
        due = _held(expected.output_ids, expected.output_ids if wanted else ())
        held = [_held(answer.log_probs, answer.top_log_probs) for answer in (expected, actual)]
        if held != [due, due]:
            return Divergence("log_probs", 0, held[0], held[1])
    for position in range(len(expected.output_ids)):
        own, other = (
            _log_probs(answer.log_probs, answer.top_log_probs, position) for answer in (expected, actual)
        )
        if own != other:
            return Divergence("log_probs", position, own, other)
    return None


def _first_prompt_log_prob(expected: Generation, actual: Generation) -> Divergence | None:
    """Compare those of the prompt; the number of its tokens is known to the server alone."""
    held = [_held(answer.prompt_log_probs, answer.prompt_top_log_probs) for answer in (expected, actual)]
    if held[0] != held[1]:
        return Divergence("prompt_log_probs", 0, held[0], held[1])
    for place in range(len(expected.prompt_log_probs)):
        own, other = (
            _log_probs(answer.prompt_log_probs, answer.prompt_top_log_probs, place)
            for answer in (expected, actual)
        )
        if own != other:
            return Divergence("prompt_log_probs", place + 1, own, other)  # the first token has none
    return None


def _held(log_probs: Sized, alternatives: Sized) -> str:
    return f"{len(log_probs)} log probs, alternatives at {len(alternatives)} positions"


def _log_probs(log_probs: Sequence[float], top_log_probs: TopLogProbs, position: int) -> str:
    """Format the log probabilities at a position; equal text means equal bits."""
    own = " ".join(repr(log_prob) for log_prob in log_probs[position : position + 1])
    alternatives = [
        f"{token_id}: {log_prob!r}"
        for at_position in top_log_probs[position : position + 1]
        for token_id, log_prob in at_position
    ]
    return f"{own} ({', '.join(alternatives)})" if alternatives else own
