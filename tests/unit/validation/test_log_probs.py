"""Tests that the proof compares the log probabilities of answers and prompts, bit by bit."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from pipelines.client import CompletionRequest, Generation
from pipelines.client.comparison import first_divergence
from pipelines.client.connection import SPECULATIVE, TARGET_ALONE
from pipelines.validation.exact.verdict import Proof
from tests.unit.client.scripted_client import honest
from tests.unit.validation.test_exact import ANSWER, ASKED, PLAN, change_of, run


def test_log_probabilities_are_compared_in_bits() -> None:
    nearby = math.nextafter(ANSWER.log_probs[1], -math.inf)
    other = replace(ANSWER, log_probs=(ANSWER.log_probs[0], nearby, *ANSWER.log_probs[2:]))
    found = first_divergence(ANSWER, other, ASKED)
    assert found is not None
    assert (found.kind, found.position) == ("log_probs", 1)
    assert repr(nearby) in found.actual
    not_a_number = replace(ANSWER, log_probs=(math.nan, *ANSWER.log_probs[1:]))
    assert first_divergence(not_a_number, not_a_number, ASKED) is None


def test_log_probabilities_of_the_prompt_are_compared_in_bits() -> None:
    asked = replace(ASKED, return_prompt_log_probs=True)
    answer = honest(asked, TARGET_ALONE)
    own, others = answer.prompt_log_probs, answer.prompt_top_log_probs
    nearby = math.nextafter(own[1], -math.inf)
    changed = ((others[2][0], (others[2][1][0], nearby)),)
    changes: list[tuple[dict[str, Any], int]] = [
        ({"prompt_log_probs": (own[0], nearby, own[2])}, 2),
        ({"prompt_top_log_probs": (*others[:2], *changed)}, 3),
        ({"prompt_log_probs": own[:2], "prompt_top_log_probs": others[:2]}, 0),
        ({"prompt_log_probs": (), "prompt_top_log_probs": ()}, 0),
    ]
    for change, position in changes:
        found = first_divergence(answer, replace(answer, **change), asked)
        assert found is not None
        assert (found.kind, found.position) == ("prompt_log_probs", position)
        assert found.place == f"prompt position {position}"
    assert first_divergence(answer, replace(answer), asked) is None


def test_a_draft_that_changes_one_bit_of_a_prompt_s_log_probabilities_fails() -> None:
    def slip(given: Generation) -> Generation:
        last = math.nextafter(given.prompt_log_probs[-1], -math.inf)
        return replace(given, prompt_log_probs=(*given.prompt_log_probs[:-1], last))

    proof = run(change_of(SPECULATIVE, slip, lambda request: request.return_prompt_log_probs))
    assert proof.verdict == "fail" and proof.findings
    for found in proof.findings:
        assert found.divergence is not None and found.divergence.kind == "prompt_log_probs"
        assert found.request.return_prompt_log_probs


def test_a_proof_without_any_log_probability_fails() -> None:
    without = tuple(replace(result, num_log_probs=0) for result in run().passes)
    assert Proof(without, PLAN.goal).failures() == [
        "log probabilities were requested, but none were compared"
    ]


def test_a_proof_that_asked_for_log_probabilities_of_prompts_and_got_none_fails() -> None:
    def without(request: CompletionRequest, model: str, given: Generation) -> Generation:
        return replace(given, prompt_log_probs=(), prompt_top_log_probs=())

    assert run(without).failures() == ["log probabilities of prompts were requested, but none were compared"]
