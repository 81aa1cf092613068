"""Tests of which request counts for which arm."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from pipelines.canary.controller.evidence import observed_requests
from pipelines.canary.judge.observed import ObservedRequest
from pipelines.router.observation import Observation

ANSWER = Observation(
    canary_id="c1",
    generation=3,
    request_id="r1",
    key="s1",
    arm="candidate",
    arrived_at_s=5.0,
    oldest_open_at_s=4.0,
    band="high",
    ttft_s=0.02,
    e2e_latency_s=0.3,
    longest_pause_s=0.04,
    num_output_tokens=16,
    drafted_per_round=(4, 4, 4, 4),
    accepted_per_round=(4, 3, 4, 1),
    prompt_id="p1",
    session_id="s1",
    is_replay=True,
    answer="equal",
    num_common_tokens=16,
)


def test_an_answer_keeps_everything_that_is_judged() -> None:
    [found] = observed_requests(ANSWER, "exact")
    names = {field.name for field in fields(ObservedRequest)} - {"server"}  # the reader of the log knows it
    for name in names:
        assert getattr(found, name) == getattr(ANSWER, name), name


def test_an_answer_after_a_failure_counts_for_nobody_and_each_failure_for_its_arm() -> None:
    fallen = replace(
        ANSWER,
        arm="control",
        is_replay=False,
        fallback_from=("candidate", "stable"),
        fallback_reasons=("timeout", "out"),
    )
    found = list(observed_requests(fallen, "exact"))
    assert [(each.arm, each.failure) for each in found] == [("candidate", "timeout"), ("stable", "error")]
    assert {(each.request_id, each.band, each.session_id) for each in found} == {("r1", "high", "s1")}
    assert {(each.e2e_latency_s, each.num_output_tokens, each.answer) for each in found} == {(None, 0, "")}


def test_neither_a_full_queue_nor_a_fallback_counts_against_an_arm() -> None:
    fallen = replace(ANSWER, arm="control", is_replay=False, fallback_from=("candidate", "stable"))
    assert list(observed_requests(replace(fallen, fallback_reasons=("busy", "busy")), "exact")) == []
    [found] = observed_requests(replace(fallen, fallback_reasons=("busy", "error")), "exact")
    assert (found.arm, found.failure) == ("stable", "error")


def test_what_a_client_chose_counts_for_nobody() -> None:
    assert list(observed_requests(replace(ANSWER, overridden=True), "exact")) == []
    failed = {"fallback_from": ("candidate",), "fallback_reasons": ("error",)}
    assert list(observed_requests(replace(ANSWER, overridden=True, **failed), "exact")) == []


@pytest.mark.parametrize(
    ("answer", "differs_in", "runtime", "counts_as"),
    [
        ("diverged", "tokens", "exact", "diverged"),
        ("diverged", "log_probs", "exact", "diverged"),
        ("diverged", "tokens", "batch_dependent", "unknown"),  # it may be a tie
        ("diverged", "log_probs", "batch_dependent", "equal"),  # their last bits depend on the batch
        ("diverged", "finish_reason", "batch_dependent", "diverged"),
        ("diverged", "chunks", "batch_dependent", "diverged"),
        ("equal", "", "batch_dependent", "equal"),
        ("", "", "exact", ""),
    ],
)
def test_a_difference_may_be_a_tie_where_answers_depend_on_the_batch(
    answer: str, differs_in: str, runtime: str, counts_as: str
) -> None:
    [found] = observed_requests(replace(ANSWER, answer=answer, differs_in=differs_in), runtime)
    assert found.answer == counts_as
