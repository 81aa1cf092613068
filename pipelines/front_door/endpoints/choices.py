"""Asks for several answers, and writes them as choices, with usage and what vLLM tells of speculation."""

from __future__ import annotations

import hashlib
import secrets
import time
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from pipelines.errors import InvalidRequestError
from pipelines.front_door.answering import Event, Format
from pipelines.front_door.requests.sampling import SEED_BITS, SamplingFields, StreamOptions
from pipelines.front_door.served_model import ServedModel
from pipelines.front_door.token_details import runs_by_source
from pipelines.wire.chunk import Chunk, SpeculationCounts
from pipelines.wire.request import CompletionRequest

MAX_CHOICES = 128
"""Most answers of one request: prompts times ``n``."""


def seed_of_choice(seed: int, number: int) -> int:
    """Return the seed of a choice; that of the first is the request's own."""
    if number == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}/{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> (64 - SEED_BITS)


def choices_of(asked: CompletionRequest, n: int) -> list[CompletionRequest]:
    """Return a request for each of ``n`` answers to a prompt, with seeds of their own."""
    assert asked.seed is not None
    return [replace(asked, seed=seed_of_choice(asked.seed, number)) for number in range(n)]


def check_choices(num_prompts: int, n: int) -> None:
    """Refuse a request for no answer or too many.

    Raises:
        InvalidRequestError: ``n`` is out of range.
    """
    if n < 1 or num_prompts * n > MAX_CHOICES:
        raise InvalidRequestError(
            f"n={n} asks for {num_prompts * n} answers, and one request may have 1 to {MAX_CHOICES}",
            "send n=1, or leave it out" if n < 1 else "send several requests",
        )


class Choices(Format):
    """Writes the answers to one request as choices.

    Args:
        body: The request.
        model: The model.
        asked: A request for each answer; ``n`` for each prompt.
        id_prefix: Beginning of the response's id.
        kind: The response's ``object``.
    """

    def __init__(
        self,
        body: SamplingFields,
        model: ServedModel,
        asked: Sequence[CompletionRequest],
        id_prefix: str,
        kind: str,
    ) -> None:
        self._model = model
        self._asked = asked
        self._fields = body
        self._options = body.stream_options or StreamOptions()
        self._begun: set[int] = set()
        self._has_told_nothing = True
        self._num_prompt_tokens = sum(len(each.prompt_ids) for each in asked[:: body.n])
        self._num_output_tokens = self._num_cached = 0
        self._last: Chunk | None = None
        self._counts: dict[int, SpeculationCounts] = {}  # of each answer so far
        self._head = {
            "id": f"{id_prefix}-{secrets.token_hex(12)}",
            "object": kind,
            "created": int(time.time()),
            "model": model.name,
            "system_fingerprint": model.fingerprint,
        }

    def whole(self, answers: Sequence[Chunk]) -> dict[str, Any]:
        """Return the document of a response that is not streamed."""
        choices = [self._choice(number, chunk) for number, chunk in enumerate(answers)]
        ending = {"usage": self._usage, "metrics": self._metrics, **self._fields.warning_fields}
        return {**self._head, "choices": choices, **ending}

    def end(self) -> Iterable[Event]:
        """Return the events after all answers."""
        if self._options.include_usage:
            yield {**self._head, "choices": [], "usage": self._usage, "metrics": self._metrics}

    @abstractmethod
    def _choice(self, number: int, chunk: Chunk) -> dict[str, Any]:
        """Return the choice of a whole answer."""

    def _event(self, choice: dict[str, Any]) -> Event:
        told = self._fields.warning_fields if self._has_told_nothing else {}
        self._has_told_nothing = False
        return {**self._head, "choices": [choice], **self._options.usage_of_event(self._usage), **told}

    def _begins(self, number: int, chunk: Chunk) -> bool:
        """Count a chunk; return whether it is the first of its answer."""
        self._num_output_tokens += len(chunk.output_ids)
        if number % self._fields.n == 0:  # as for the tokens of prompts
            self._num_cached += chunk.num_cached
        self._last = chunk
        if chunk.counts is not None:
            self._counts[number] = chunk.counts
        is_first = number not in self._begun
        self._begun.add(number)
        return is_first

    def _details(self, chunk: Chunk) -> dict[str, Any]:
        """Return what is told of the tokens of a chunk besides their log probabilities."""
        details: dict[str, Any] = {}
        if self._fields.return_token_sources:
            details["token_sources"] = runs_by_source(self._model, chunk)
        if self._fields.return_token_ids:
            details["token_ids"] = chunk.output_ids
        return details

    @property
    def _num_thought_tokens(self) -> int:
        """Tokens of thoughts so far."""
        return 0

    @property
    def _usage(self) -> dict[str, Any]:
        """OpenAI's ``usage`` so far; cached tokens count at the end of an answer."""
        counts = self._counts.values()
        return {
            "prompt_tokens": self._num_prompt_tokens,
            "completion_tokens": self._num_output_tokens,
            "total_tokens": self._num_prompt_tokens + self._num_output_tokens,
            "prompt_tokens_details": {"cached_tokens": self._num_cached},
            "completion_tokens_details": {
                "reasoning_tokens": self._num_thought_tokens,
                "accepted_prediction_tokens": sum(each.accepted_prediction_tokens for each in counts),
                "rejected_prediction_tokens": sum(each.rejected_prediction_tokens for each in counts),
            },
        }

    @property
    def _metrics(self) -> dict[str, Any] | None:
        """VLLM's ``metrics``, which it has only for a single answer, after its last chunk."""
        if len(self._asked) > 1 or self._last is None:
            return None
        return _speculation(self._last.counts, self._last.drafted_per_round)


def _speculation(counts: SpeculationCounts | None, drafted_per_round: Sequence[int]) -> dict[str, Any] | None:
    """Return vLLM's ``metrics`` of one answer, which AIPerf reads; None if nothing was drafted.

    Only rounds with draft tokens count as steps, as in vLLM.

    Args:
        counts: Counts of the whole answer.
        drafted_per_round: Draft tokens that each round verified.
    """
    if counts is None or not counts.total_draft_tokens:
        return None
    num_steps = sum(map(bool, drafted_per_round))
    at_least = [num_steps, *counts.accepted_per_position, 0]
    return {
        "speculative_decoding": {
            "num_spec_tokens": len(counts.accepted_per_position),
            "num_spec_steps": num_steps,
            "num_draft_tokens": counts.total_draft_tokens,
            "num_accepted_draft_tokens": counts.total_accepted_draft_tokens,
            "mean_acceptance_length": 1 + counts.total_accepted_draft_tokens / num_steps,
            "draft_acceptance_rate": counts.total_accepted_draft_tokens / counts.total_draft_tokens,
            "acceptance_histogram": [more - fewer for more, fewer in pairwise(at_least)],
        }
    }
