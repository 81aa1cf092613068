"""Counts the tokens of a response, and how speculation did."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from pipelines.client.generation import Chunk, SpeculationCounts


class Totals:
    """Counts the tokens of all answers of a response.

    Args:
        num_prompt_tokens: Tokens of all prompts.
        num_answers: Number of answers. vLLM describes speculation only for a single one.
    """

    def __init__(self, num_prompt_tokens: int, num_answers: int) -> None:
        self._num_prompt_tokens = num_prompt_tokens
        self._num_output_tokens = 0
        self._is_single = num_answers == 1
        self._last: Chunk | None = None

    def add(self, chunk: Chunk) -> None:
        """Count a chunk of an answer."""
        self._num_output_tokens += len(chunk.output_ids)
        self._last = chunk

    @property
    def usage(self) -> dict[str, int]:
        """Return OpenAI's ``usage`` so far."""
        return {
            "prompt_tokens": self._num_prompt_tokens,
            "completion_tokens": self._num_output_tokens,
            "total_tokens": self._num_prompt_tokens + self._num_output_tokens,
        }

    @property
    def metrics(self) -> dict[str, Any] | None:
        """Return vLLM's ``metrics`` of a single answer after its last chunk; None if nothing was drafted."""
        if not self._is_single or self._last is None:
            return None
        return speculation_document(self._last.counts, self._last.drafted_per_round)


def speculation_document(
    counts: SpeculationCounts | None, drafted_per_round: Sequence[int]
) -> dict[str, Any] | None:
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
    histogram = [more - fewer for more, fewer in pairwise(at_least)]
    return {
        "speculative_decoding": {
            "num_spec_tokens": len(counts.accepted_per_position),
            "num_spec_steps": num_steps,
            "num_draft_tokens": counts.total_draft_tokens,
            "num_accepted_draft_tokens": counts.total_accepted_draft_tokens,
            "mean_acceptance_length": 1 + counts.total_accepted_draft_tokens / num_steps,
            "draft_acceptance_rate": counts.total_accepted_draft_tokens / counts.total_draft_tokens,
            "acceptance_histogram": histogram,
        }
    }
