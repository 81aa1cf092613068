"""Tests of a rollout's record and the verdict computed from it."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.canary.judge.observed import ObservedRequest
from pipelines.canary.report.record import Transition, judgement
from pipelines.errors import CanaryError
from tests.unit.canary.requests import LIMITS, limits, replay, request
from tests.unit.canary.rollouts import rollout


def test_requests_are_judged_while_nothing_is_decided() -> None:
    nothing = judgement(rollout(phase="shadow", requests=()))
    assert (nothing.verdict, nothing.action, nothing.phase) == ("inconclusive", "go_on", "shadow")
    assert nothing.still_needed
    wrong = judgement(rollout(requests=(request(0, answer="diverged"),)))
    assert (wrong.verdict, wrong.action) == ("fail", "roll_back")
    assert wrong.reason.startswith("fail: answers")


@pytest.mark.parametrize(
    ("phase", "evidence", "expected"),
    [
        ("promoting", {}, ("pass", "promote")),
        ("promoting", {"verdict": "inconclusive"}, ("inconclusive", "promote")),
        ("rolling_back", {"verdict": "fail"}, ("fail", "roll_back")),
        ("rolling_back", {}, ("fail", "roll_back")),
        ("aborted", {"verdict": "inconclusive"}, ("inconclusive", "roll_back")),
    ],
)
def test_what_is_decided_stays_so_whatever_the_requests_say(
    phase: str, evidence: dict[str, Any], expected: tuple[str, str]
) -> None:
    decided = Transition(5.0, "step/1", phase, "because", evidence, {"stable": 1.0})
    found = judgement(rollout(phase=phase, transitions=(decided,), requests=(request(0, answer="diverged"),)))
    assert (found.verdict, found.action) == expected
    assert (found.reason, found.still_needed) == ("because", 0)


def passing() -> tuple[ObservedRequest, ...]:
    """Return as many equal requests as every metric needs, half of them replayed."""
    found = []
    for number in range(1500):
        found += [request(number), request(number, "stable")]
        found += [request(number, "control", e2e_latency_s=0.34)]
        found += [replay(number)] if number % 2 else []
    return tuple(found)


@pytest.mark.parametrize(("phase", "action"), [("step/1", "go_on"), ("paused", "hold"), ("shadow", "go_on")])
def test_a_candidate_that_passes_is_not_promoted_before_its_last_step(phase: str, action: str) -> None:
    limits_of_one_band = limits(speed_up={"low": LIMITS.speed_up["low"]})
    found = judgement(rollout(phase=phase, requests=passing(), limits=limits_of_one_band))
    assert (found.verdict, found.action) == ("pass", action), found.reason


def test_a_pause_does_not_hold_back_a_failure() -> None:
    assert judgement(rollout(phase="paused", requests=(request(0, answer="diverged"),))).action == "roll_back"


def test_one_that_waits_for_a_person_says_what_it_waits_for() -> None:
    held = Transition(5.0, "cold_start", "paused", "acceptance_rate 0.45, 0.50 at the build", {}, {})
    found = judgement(rollout(phase="paused", transitions=(held,)))
    assert (found.verdict, found.action, found.still_needed) == ("inconclusive", "hold", None)
    assert found.reason == held.reason
    later = Transition(9.0, "shadow", "paused", "an operator paused it", {}, {})
    assert judgement(rollout(phase="paused", transitions=(held, later))).still_needed == 50


def test_the_reason_is_that_of_the_decision_not_of_its_end() -> None:
    decided = Transition(5.0, "shadow", "rolling_back", "one answer diverged", {"verdict": "fail"}, {})
    done = Transition(6.0, "rolling_back", "rolled_back", "unloaded", {}, {})
    found = judgement(rollout(phase="rolled_back", transitions=(decided, done)))
    assert found.reason == "one answer diverged"


def test_a_phase_without_its_transition_is_refused() -> None:
    with pytest.raises(CanaryError, match="lacks the transition"):
        judgement(rollout(phase="promoted", transitions=()))
