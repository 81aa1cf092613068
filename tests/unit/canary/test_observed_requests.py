"""Tests of which request counts for which arm, and of how often the processes are measured."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.canary.controller.evidence import Evidence, observed_requests
from pipelines.canary.controller.phases import Position
from pipelines.canary.controller.rollout import Progress
from pipelines.canary.judge.observed import ObservedRequest
from pipelines.canary.judge.resources import Sample, Taken
from pipelines.router.observation import Observation
from tests.unit.canary.simulated_world import SimulatedWorld, begun

ANSWER = Observation(
    canary_id="c1",
    request_id="r1",
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
BOTH = ("candidate", "stable")


def test_an_answer_keeps_everything_that_is_judged() -> None:
    [found] = observed_requests(ANSWER, "exact")
    for field in fields(ObservedRequest):
        assert getattr(found, field.name) == getattr(ANSWER, field.name), field.name


@pytest.mark.parametrize(
    ("changes", "counted"),
    [
        # an answer after a failure counts for nobody, and each failure for its arm
        (
            {"fallback_from": BOTH, "fallback_reasons": ("timeout", "out")},
            [("candidate", "timeout"), ("stable", "error")],
        ),
        # clients can fill a queue
        ({"fallback_from": BOTH, "fallback_reasons": ("busy", "busy")}, []),
        ({"fallback_from": BOTH, "fallback_reasons": ("busy", "error")}, [("stable", "error")]),
        # what a client chose counts for nobody
        ({"overridden": True}, []),
        ({"overridden": True, "fallback_from": ("candidate",), "fallback_reasons": ("error",)}, []),
    ],
)
def test_each_failure_counts_for_its_arm(changes: dict[str, Any], counted: list[tuple[str, str]]) -> None:
    fallen = replace(ANSWER, arm="control", is_replay=False, **changes)
    found = list(observed_requests(fallen, "exact"))
    assert [(each.arm, each.failure) for each in found] == counted
    known = {(each.request_id, each.band, each.session_id, each.e2e_latency_s, each.answer) for each in found}
    assert known <= {("r1", "high", "s1", None, "")}


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
    answer: Any, differs_in: Any, runtime: str, counts_as: str
) -> None:
    [found] = observed_requests(replace(ANSWER, answer=answer, differs_in=differs_in), runtime)
    assert found.answer == counts_as


def test_old_samples_are_further_apart(tmp_path: Path) -> None:
    now_s = 0.0

    class World(SimulatedWorld):
        def sample(self) -> Sample:
            return Sample(now_s, Taken(1, 1, 1), Taken(1, 1, 1))

    world, taken = World(tmp_path), list[Sample]()
    evidence = Evidence(begun(), (), (), lambda: now_s)
    progress = Progress(Position("shadow", 0.0), 1)
    while now_s < 7 * 86400:
        taken += evidence.collect(world, progress)[0].samples
        now_s += 60.0
    assert 1000 < len(taken) < 5000
    assert taken[-1].at_s - taken[-2].at_s < 7 * 86400 / 400
