"""Tests of which request counts for which arm, and of how often the processes are measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.canary.controller.evidence import Evidence, counted
from pipelines.canary.controller.phases import Position
from pipelines.canary.controller.rollout import Progress
from pipelines.canary.judge.metrics import severity
from pipelines.canary.judge.resources import Sample, Taken
from tests.unit.canary.requests import limits, replay
from tests.unit.canary.simulated_world import SimulatedWorld, begun

ANSWER = replay(1, band="high", session_id="s1")
BOTH = ("candidate", "stable")


@pytest.mark.parametrize(
    ("changes", "found"),
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
def test_each_failure_counts_for_its_arm(changes: dict[str, Any], found: list[tuple[str, str]]) -> None:
    failures = list(counted(replace(ANSWER, arm="control", is_replay=False, **changes)))
    assert [(each.arm, each.failure) for each in failures] == found
    for each in failures:
        assert (each.request_id, each.band, each.session_id) == ("stable-1", "high", "s1")
        assert (each.e2e_latency_s, each.answer) == (None, "")


@pytest.mark.parametrize(
    ("answer", "differs_in", "runtime", "expected"),
    [
        ("diverged", "tokens", "exact", 2),
        ("diverged", "log_probs", "exact", 2),
        ("diverged", "tokens", "batch_dependent", 1),  # it may be a tie
        ("diverged", "log_probs", "batch_dependent", 0),  # their last bits depend on the batch
        ("diverged", "finish_reason", "batch_dependent", 2),
        ("diverged", "chunks", "batch_dependent", 2),
        ("equal", "", "batch_dependent", 0),
        ("", "", "exact", 0),
    ],
)
def test_a_difference_may_be_a_tie_where_answers_depend_on_the_batch(
    answer: Any, differs_in: Any, runtime: str, expected: int
) -> None:
    request = replace(ANSWER, answer=answer, differs_in=differs_in)
    assert severity(request, limits(runtime=runtime)) == expected


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
