"""Tests of the first difference of two answers: its kind, its place, and what may differ."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from pipelines.client import CompletionRequest, Generation
from pipelines.client.comparison import first_divergence
from pipelines.client.connection import TARGET_ALONE
from tests.unit.client.scripted_client import honest

ASKED = CompletionRequest("prompt", max_tokens=4, seed=5, num_log_probs=2, return_prompt_log_probs=True)
ANSWER = honest(ASKED, TARGET_ALONE)
TOP, OF_PROMPT, TOP_OF_PROMPT = ANSWER.top_log_probs, ANSWER.prompt_log_probs, ANSWER.prompt_top_log_probs


def ids(*token_ids: int) -> Generation:
    return replace(ANSWER, output_ids=token_ids)


def less(log_prob: float) -> float:
    """Return the next smaller number, which differs in the last bit."""
    return math.nextafter(log_prob, -math.inf)


def but(**changes: Any) -> tuple[Generation, Generation]:
    return ANSWER, replace(ANSWER, **changes)


@pytest.mark.parametrize(
    ("pair", "kind", "position"),
    [
        ((ids(1, 2, 3, 4), ids(1, 2, 3, 4)), "", -1),
        ((ids(1, 2, 3, 4), ids(1, 9, 3, 4)), "token", 1),
        ((ids(1, 2, 3, 4), ids(1, 2, 3)), "length", 3),
        ((ids(1, 2, 3, 4), ids(1, 2, 3, 4, 5)), "length", 4),
        ((ids(1, 2, 3, 4), ids()), "length", 0),
        ((ids(1, 2, 3, 4), ids(1, 9)), "token", 1),
        (but(finish_reason="stop"), "finish_reason", 4),
        (but(text="?"), "text", 4),
        (but(seed=6), "seed", 4),
        ((replace(ANSWER, seed=6),) * 2, "seed", 4),  # both ignored the one asked for
        (but(log_probs=(*ANSWER.log_probs[:3], less(ANSWER.log_probs[3]))), "log_probs", 3),
        (but(log_probs=(-0.0, *ANSWER.log_probs[1:])), "log_probs", 0),
        (but(log_probs=()), "log_probs", 0),
        ((replace(ANSWER, log_probs=()),) * 2, "log_probs", 0),
        ((replace(ANSWER, log_probs=(math.nan, *ANSWER.log_probs[1:])),) * 2, "", -1),
        (but(top_log_probs=(*TOP[:2], ((1, -1.0),), TOP[3])), "log_probs", 2),
        ((replace(ANSWER, top_log_probs=()),) * 2, "log_probs", 0),
        (but(prompt_log_probs=(OF_PROMPT[0], less(OF_PROMPT[1]), OF_PROMPT[2])), "prompt_log_probs", 2),
        (but(prompt_top_log_probs=(*TOP_OF_PROMPT[:2], ((2, less(-2 / 7)),))), "prompt_log_probs", 3),
        (but(prompt_log_probs=(), prompt_top_log_probs=()), "prompt_log_probs", 0),
    ],
)
def test_the_first_difference_is_found(pair: tuple[Generation, Generation], kind: str, position: int) -> None:
    found = first_divergence(*pair, ASKED)
    assert (found.kind if found else "", found.position if found else -1) == (kind, position)


def test_seeds_that_the_server_drew_may_differ_and_unasked_log_probs_may_be_absent() -> None:
    drawn = replace(ANSWER, seed=1, log_probs=(), top_log_probs=())
    other = replace(drawn, seed=2)
    assert first_divergence(drawn, other, replace(ASKED, seed=None, num_log_probs=None)) is None
    assert first_divergence(drawn, other) is None


def test_the_ids_at_a_difference_are_kept_and_an_end_has_none() -> None:
    shorter = first_divergence(ids(1, 2, 3), replace(ids(1, 2), finish_reason="stop"))
    assert shorter is not None
    assert (shorter.expected_id, shorter.actual_id, shorter.place) == (3, None, "output position 2")
