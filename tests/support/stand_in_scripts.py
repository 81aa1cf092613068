"""Scripted answers for ``stand_in_server.StandInServer``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.support.stand_in_server import response

FIRST_ROUND = {
    "accepted_mask": [True, True, False],
    "num_rounds": 1,
    "total_draft_tokens": 4,
    "total_accepted_draft_tokens": 2,
    "accepted_per_position": [1, 1, 0, 0],
}
SECOND_ROUND = {
    "accepted_mask": [False],
    "num_rounds": 2,
    "total_draft_tokens": 8,
    "total_accepted_draft_tokens": 2,
    "accepted_per_position": [1, 1, 0, 0],
}


def two_rounds(inputs: dict[str, Any], model: str) -> Iterator[dict[str, Any]]:
    """Answer with four tokens in two rounds; in one response if the request is not streamed."""
    with_counts = model == "generate"
    if inputs["stream"]:
        yield response("a ü", [5, 6, 7], 3, **(FIRST_ROUND if with_counts else {}))
        yield response(" b", [8], 4, "length", **(SECOND_ROUND if with_counts else {}))
    else:
        counts = {**SECOND_ROUND, "accepted_mask": [True, True, False, False]}
        yield response("a ü b", [5, 6, 7, 8], 4, "length", **(counts if with_counts else {}))


def with_log_probs(inputs: dict[str, Any], model: str) -> Iterator[dict[str, Any]]:
    """Answer with three tokens and two alternatives each; a stream has an empty third response."""
    seed = {"output_seed": 2**64 - 1}
    ids, values = [5, 1, 6, 5, 2, 3], [-0.5, -1.5, -0.25, -2.0, -0.125, -4.0]
    if inputs["stream"]:
        first = {"output_log_probs": [-0.5], "top_log_prob_ids": ids[:2], "top_log_probs": values[:2]}
        rest = {"output_log_probs": [-2.0, -9.0], "top_log_prob_ids": ids[2:], "top_log_probs": values[2:]}
        none: dict[str, Any] = {"output_log_probs": [], "top_log_prob_ids": [], "top_log_probs": []}
        yield response("a", [5], 1, **seed, **first)
        yield response("bc", [5, 9], 3, **seed, **rest)
        yield response("", [], 3, "stop", **seed, **none)
    else:
        whole = {"output_log_probs": [-0.5, -2.0, -9.0], "top_log_prob_ids": ids, "top_log_probs": values}
        yield response("abc", [5, 5, 9], 3, "stop", **seed, **whole)
