"""Compare two answers to one request in all bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipelines.client import CompletionRequest, Generation
from pipelines.validation.differences import END, Difference


def first_difference(
    prompt_id: str, expected: Generation, actual: Generation, request: CompletionRequest | None = None
) -> Difference | None:
    """Compare token ids, finish reason, text, seed and log probabilities of answer and prompt, all exactly.

    Equal ids with different texts are a fault too, of the detokenizer.

    Args:
        prompt_id: Name of the prompt.
        expected: Answer of the target alone.
        actual: Other answer.
        request: Request of both answers, which determines the seed and the log probabilities that they must
            have; None if they need not have any.

    Returns:
        The first difference; None if the answers are equal.
    """
    for (place, own), (_, other) in zip(_parts(expected), _parts(actual), strict=False):
        if own != other:
            return Difference(prompt_id, place, own, other)
    for answer in (expected, actual):
        for place, demanded, found in _demands(request, answer) if request else ():
            if demanded != found:  # two answers that lack the same are equal
                return Difference(prompt_id, place, f"{demanded}, as requested", str(found))
    return None


def _parts(answer: Generation) -> Iterator[tuple[str, str]]:
    """Yield the place and the value of all that must be equal; floats as text, so that equal means all bits.

    Two answers have the same places up to their first difference, since each has its end among them.
    """
    for position, token_id in enumerate(answer.output_ids):
        yield f"token {position}", str(token_id)
    yield f"token {len(answer.output_ids)}", END
    yield "finish_reason", answer.finish_reason
    yield "text", answer.text
    yield from _log_probs("token", 0, answer.log_probs, answer.top_log_probs)
    # The first token of a prompt has none.
    yield from _log_probs("prompt token", 1, answer.prompt_log_probs, answer.prompt_top_log_probs)


def _log_probs(
    what: str, first: int, log_probs: Sequence[object], alternatives: Sequence[object]
) -> Iterator[tuple[str, str]]:
    yield f"log probabilities of {what}s", _held(log_probs, alternatives)
    for place in range(max(len(log_probs), len(alternatives))):
        at_place = *log_probs[place : place + 1], *alternatives[place : place + 1]
        yield f"log probabilities of {what} {first + place}", " ".join(map(repr, at_place))


def _held(log_probs: Sequence[object], alternatives: Sequence[object]) -> str:
    return f"{len(log_probs)} log probs, alternatives at {len(alternatives)} positions"


def _demands(request: CompletionRequest, answer: Generation) -> Iterator[tuple[str, object, object]]:
    """Yield what a request demands of its answer, and what the answer has."""
    if request.seed is not None:
        yield "seed", request.seed, answer.seed
    if request.num_log_probs is not None:
        ids = answer.output_ids
        due = _held(ids, ids if request.num_log_probs else ())
        yield "log probabilities of tokens", due, _held(answer.log_probs, answer.top_log_probs)
