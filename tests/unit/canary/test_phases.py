"""Tests of which phase follows which."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, cast

import pytest

from pipelines.canary.controller.phases import ENDED, Decision, Facts, Judged, Order, Position, decide
from pipelines.canary.controller.plan import Step
from pipelines.canary.controller.rollout import Progress, arm_table, weights_at
from pipelines.canary.controller.world import Outcome
from pipelines.canary.judge.verdict import Action, Word
from pipelines.router.arms import ArmSetting
from tests.unit.canary.simulated_world import CANDIDATE, CANDIDATE_CONTROL, CONTROL, PLAN, STABLE, begun

NOW_S = 1000.0
GOOD = Outcome(True, "good", {"seen": 1})
BAD = Outcome(False, "bad", {"seen": 2})
HELD = Outcome(False, "acceptance_rate 0.45, 0.50 at the build", {"seen": 3}, needs_review=True)
SERVING = ("shadow", "step/1", "step/2")


def judged(verdict: str, action: str = "go_on") -> Judged:
    return Judged(cast(Word, verdict), cast(Action, action), f"{verdict}: ttft")


def after(phase: str, paused_in: str = "", **facts: Any) -> Decision:
    """Return the decision in a phase that has lasted long, with many pairs."""
    position = Position(phase, 0.0, 0, paused_in)
    known = {"now_s": NOW_S, "num_pairs": 1000, "num_replays": 1000, **facts}
    return decide(position, Facts(**known), PLAN)


@pytest.mark.parametrize(
    ("phase", "following"), list(itertools.pairwise(("preflight", "loading", "cold_start", "shadow")))
)
def test_each_preparation_must_succeed(phase: str, following: str) -> None:
    assert after(phase, outcome=GOOD).position.phase == following
    assert after(phase, outcome=GOOD).evidence == {"seen": 1}
    assert after(phase).position.phase == phase
    refused = after(phase, outcome=BAD)
    assert refused.position.phase == ("rolled_back" if phase == "preflight" else "rolling_back")
    assert (refused.reason, refused.evidence["verdict"]) == ("bad", "fail")


@pytest.mark.parametrize(("phase", "following"), list(itertools.pairwise((*SERVING, "promoting"))))
def test_a_candidate_rises_step_by_step_and_passes_before_the_last(phase: str, following: str) -> None:
    assert after(phase, judged=judged("pass", "promote")).position.phase == following


def test_the_last_step_lasts_until_the_verdict() -> None:
    assert after("step/2", judged=judged("inconclusive")).position.phase == "step/2"
    assert after("step/2").position.phase == "step/2"
    assert after("step/1", judged=judged("inconclusive")).position.phase == "step/2"


def test_a_step_has_its_own_pairs_and_its_time() -> None:
    step = PLAN.steps[0]
    early = Position("step/1", NOW_S - step.bake_s, num_pairs_before=500)

    def follows(position: Position, num_pairs: int) -> str:
        return decide(position, Facts(NOW_S, num_pairs=num_pairs), PLAN).position.phase

    assert follows(early, 500 + step.min_pairs) == "step/2"
    assert follows(early, 500 + step.min_pairs - 1) == "step/1"
    assert follows(replace(early, since_s=early.since_s + 0.1), 500 + step.min_pairs) == "step/1"
    entered = decide(early, Facts(NOW_S, num_pairs=600), PLAN).position
    assert (entered.since_s, entered.num_pairs_before) == (NOW_S, 600)


@pytest.mark.parametrize("phase", SERVING)
@pytest.mark.parametrize("order", [None, "pause", "resume", "promote"])
@pytest.mark.parametrize("is_paused", [False, True])
def test_a_candidate_that_failed_leaves_whatever_is_asked(phase: str, order: str, is_paused: bool) -> None:
    where = ("paused", phase) if is_paused else (phase, "")
    decision = after(*where, order=order, judged=judged("fail", "roll_back"))
    assert decision.position.phase == "rolling_back"
    assert decision.reason == "fail: ttft"
    assert decision.evidence["verdict"] == "fail"


@pytest.mark.parametrize("phase", ["preflight", "loading", "cold_start", *SERVING, "paused", "promoting"])
def test_an_abort_is_obeyed_in_every_phase(phase: str) -> None:
    paused_in = "step/1" if phase == "paused" else ""
    decision = after(phase, paused_in, order="abort", outcome=GOOD, judged=judged("pass", "promote"))
    assert decision.position.phase == "rolling_back"
    assert decision.evidence["verdict"] == "inconclusive"
    left = decide(decision.position, Facts(NOW_S, outcome=Outcome(True, "unloaded")), PLAN)
    assert left.position.phase == "aborted"


def test_a_candidate_that_is_above_a_limit_is_watched_and_then_leaves() -> None:
    hold = judged("inconclusive", "hold")
    held = after("step/1", judged=hold)
    assert (held.position.phase, held.position.held_since_s) == ("step/1", NOW_S)

    def later(seconds: float, now: Judged) -> Decision:
        return decide(held.position, Facts(NOW_S + seconds, judged=now, num_pairs=1000), PLAN)

    assert later(PLAN.hold_s, hold).position.phase == "step/1"
    left = later(PLAN.hold_s + 1, hold)
    assert left.position.phase == "rolling_back"
    assert left.evidence["verdict"] == "inconclusive"
    freed = later(PLAN.hold_s + 1, judged("inconclusive"))
    assert (freed.position.phase, freed.position.held_since_s) == ("step/2", None)


def test_a_spent_sample_without_a_verdict_is_no_pass() -> None:
    spent = after("step/2", judged=judged("inconclusive"), num_pairs=PLAN.max_pairs)
    assert spent.position.phase == "rolling_back"
    assert spent.evidence["verdict"] == "inconclusive"
    assert after("step/2", judged=judged("pass"), num_pairs=PLAN.max_pairs).position.phase == "promoting"


def test_the_shadow_waits_for_replays_and_a_step_for_requests_of_clients() -> None:
    shadow, step = PLAN.shadow, PLAN.steps[0]
    assert after("shadow", num_pairs=0, num_replays=shadow.min_pairs).position.phase == "step/1"
    assert after("shadow", num_replays=shadow.min_pairs - 1).position.phase == "shadow"
    assert after("step/1", num_pairs=step.min_pairs, num_replays=0).position.phase == "step/2"
    assert after("step/1", num_pairs=step.min_pairs - 1, num_replays=10**6).position.phase == "step/1"


@pytest.mark.parametrize("phase", SERVING)
def test_a_candidate_without_new_evidence_is_rolled_back_without_a_verdict(phase: str) -> None:
    few: dict[str, Any] = {"num_pairs": 0, "num_replays": 0}
    assert after(phase, **few, idle_s=PLAN.idle_s).position.phase == phase
    idle = after(phase, **few, idle_s=PLAN.idle_s + 1)
    assert idle.position.phase == "rolling_back"
    assert idle.reason == f"no new evidence for {PLAN.idle_s + 1:.0f} s"
    assert idle.evidence["verdict"] == "inconclusive"
    assert after("paused", phase, **few, idle_s=9e9).position.phase == "paused"


def test_probes_that_are_neither_good_nor_bad_wait_for_a_person() -> None:
    held = after("cold_start", outcome=HELD)
    position = held.position
    assert (position.phase, position.paused_in, position.pause_reason) == (
        "paused",
        "cold_start",
        HELD.reason,
    )
    assert (held.reason, held.evidence) == (HELD.reason, {"seen": 3, "verdict": "inconclusive"})
    assert decide(position, Facts(NOW_S + 9e6), PLAN).position == position
    assert weights_at(position, PLAN) == {"stable": 1.0, "candidate": 0.0, "control": 0.0}
    table = arm_table(begun(), Progress(position, 7, CANDIDATE), NOW_S)
    assert (table.candidate, table.shadow) == (None, None)

    def ordered(order: str) -> Decision:
        return decide(position, Facts(NOW_S + 5, order=cast(Order, order)), PLAN)

    assert ordered("resume").position == Position("shadow", NOW_S + 5)
    assert ordered("promote").position.phase == "promoting"
    assert ordered("promote").evidence["num_pairs"] == 0
    aborted = ordered("abort").position
    assert (aborted.phase, aborted.is_abort) == ("rolling_back", True)
    gone = decide(position, Facts(NOW_S, down_s=PLAN.down_after_s + 1), PLAN)
    assert (gone.position.phase, gone.evidence["verdict"]) == ("rolling_back", "fail")


@pytest.mark.parametrize("phase", SERVING)
def test_a_pause_keeps_the_weight_and_a_resume_continues_there(phase: str) -> None:
    paused = after(phase, order="pause", judged=judged("pass", "promote")).position
    assert (paused.phase, paused.paused_in) == ("paused", phase)
    assert weights_at(paused, PLAN) == weights_at(Position(phase, 0.0), PLAN)
    still = decide(paused, Facts(NOW_S + 9e6, judged=judged("pass", "promote"), num_pairs=10**6), PLAN)
    assert still.position == paused
    resumed = decide(paused, Facts(NOW_S, order="resume"), PLAN)
    assert resumed.position == Position(phase, 0.0)


@pytest.mark.parametrize("phase", [*SERVING, "promoting"])
def test_a_candidate_that_does_not_answer_leaves(phase: str) -> None:
    few = {"num_pairs": 0, "num_replays": 0}
    assert after(phase, down_s=PLAN.down_after_s, **few).position.phase == phase
    down = after(phase, down_s=PLAN.down_after_s + 0.1)
    assert down.position.phase == "rolling_back"
    assert down.evidence["verdict"] == "fail"


@pytest.mark.parametrize("phase", [*SERVING, "promoting"])
def test_a_candidate_whose_process_ended_leaves_however_fast_it_was_replaced(phase: str) -> None:
    restarted = after(phase, has_restarted=True, judged=judged("pass", "promote"))
    assert restarted.position.phase == "rolling_back"
    assert (restarted.reason, restarted.evidence["verdict"]) == ("its process ended and was replaced", "fail")


def test_what_has_ended_stays_ended() -> None:
    for phase in ENDED:
        facts = {"order": "abort", "outcome": BAD, "judged": judged("fail"), "down_s": 99.0}
        assert after(phase, **facts).position.phase == phase


def test_a_pair_with_all_requests_is_watched_before_the_old_one_goes() -> None:
    assert after("promoting").position.phase == "promoting"
    assert after("promoting", outcome=GOOD).position.phase == "settling"
    assert after("settling").position.phase == "settling"
    assert after("settling", outcome=GOOD).position.phase == "promoted"


def test_a_pair_that_no_later_server_would_have_is_not_promoted() -> None:
    decision = after("promoting", outcome=BAD)
    assert decision.position.phase == "rolling_back"
    assert (decision.reason, decision.evidence["verdict"]) == ("bad", "inconclusive")


def test_there_is_no_way_back_once_the_old_pair_goes() -> None:
    """It may be gone already."""
    assert after("settling", order="abort", down_s=99.0).position.phase == "settling"
    assert after("settling", order="abort", down_s=99.0, outcome=GOOD).position.phase == "promoted"


@pytest.mark.parametrize(
    ("phase", "candidate"),
    [
        ("preflight", None),
        ("loading", None),
        ("cold_start", None),
        ("shadow", 0.0),
        ("step/1", 0.1),
        ("step/2", 0.25),
        ("promoting", 1.0),
        ("rolling_back", None),
        ("rolled_back", None),
        ("aborted", None),
    ],
)
def test_the_table_of_each_phase(phase: str, candidate: float | None) -> None:
    progress = Progress(Position(phase, 0.0), 7, CANDIDATE, CANDIDATE_CONTROL)
    table = arm_table(begun(), progress, NOW_S)
    assert table.stable.socket == STABLE
    assert (table.candidate and table.candidate.weight) == candidate
    assert sum(table.weights(NOW_S).values()) == pytest.approx(1)
    is_judged = candidate is not None and phase != "promoting"
    assert (table.shadow is not None) == is_judged
    assert table.replays_match == "stable"
    assert arm_table(begun(), replace(progress, same_target=False), NOW_S).replays_match == "own_target"
    assert table.control == ArmSetting(CONTROL, PLAN.control_weight if is_judged else 0.0)
    assert table.weights(NOW_S + PLAN.lease_s).get("candidate", 0.0) == 0


@pytest.mark.parametrize("phase", ["settling", "promoted"])
def test_a_promoted_pair_is_the_stable_one_without_a_lease_and_its_target_is_the_control(phase: str) -> None:
    progress = Progress(Position(phase, 0.0), 7, CANDIDATE, CANDIDATE_CONTROL)
    table = arm_table(begun(), progress, NOW_S)
    assert table.stable.socket == CANDIDATE
    assert table.control == ArmSetting(CANDIDATE_CONTROL, 0.0)
    assert table.candidate is None
    assert table.weights(NOW_S + 9e9) == {"stable": 1.0, "control": 0.0}


@pytest.mark.parametrize(
    ("weight", "share"), [(0.0, 0.5), (0.1, 0.5), (0.25, 0.5), (0.3, 0.4), (0.4, 0.0), (0.6, 0.0)]
)
def test_a_candidate_never_has_more_to_do_than_the_stable_pair(weight: float, share: float) -> None:
    """With a control of 0.2 and at most half of the requests replayed."""
    assert PLAN.replayed_share(weight) == pytest.approx(share, abs=1e-3)
    plan = replace(PLAN, steps=(Step(weight, 20, 6.0),)) if weight else PLAN
    position = Position("step/1" if weight else "shadow", 0.0)
    table = arm_table(begun(plan), Progress(position, 7, CANDIDATE, CANDIDATE_CONTROL), NOW_S)
    assert (table.shadow.share if table.shadow else 0.0) == pytest.approx(share, abs=1e-3)
    weights = table.weights(NOW_S)
    assert weights["candidate"] + share * weights["stable"] <= max(weights["stable"], weight) + 1e-3


@pytest.mark.parametrize("needs_replays", [False, True])
@pytest.mark.parametrize("weight", [0.25, 0.4])
def test_a_step_in_which_nothing_is_repeated_waits_until_replays_have_shown_all_they_can(
    weight: float, needs_replays: bool
) -> None:
    plan = replace(PLAN, steps=(Step(weight, 20, 6.0),))
    found = Judged("inconclusive", "go_on", "inconclusive: ttft", needs_replays)
    facts = Facts(NOW_S + 60, judged=found, num_replays=1000)
    following = decide(Position("shadow", NOW_S), facts, plan).position.phase
    assert following == ("shadow" if needs_replays and weight == 0.4 else "step/1")


def test_replays_that_show_nothing_end_a_rollout_whose_next_step_has_none() -> None:
    plan = replace(PLAN, steps=(Step(0.4, 20, 6.0),))
    found = Judged("inconclusive", "go_on", "inconclusive: tokens")
    facts = Facts(NOW_S + 60, judged=found, num_replays=plan.max_pairs - 1)
    shadow = Position("shadow", NOW_S)
    assert decide(shadow, facts, plan).position.phase == "shadow"
    ended = decide(shadow, replace(facts, num_replays=plan.max_pairs), plan)
    assert ended.position.phase == "rolling_back"
    assert ended.reason == f"no verdict after {plan.max_pairs} replays: inconclusive: tokens"
    assert ended.evidence["verdict"] == "inconclusive"
    shown = replace(facts, num_replays=plan.max_pairs, judged=replace(found, needs_replays=False))
    assert decide(shadow, shown, plan).position.phase == "step/1"


def test_a_step_without_replays_goes_back_for_more_if_the_last_ones_were_needed() -> None:
    plan = replace(PLAN, steps=(Step(0.4, 20, 6.0),))
    step = Position("step/1", NOW_S, 3)
    reopened = Judged("inconclusive", "go_on", "inconclusive: survival/3")
    facts = Facts(NOW_S + 1, judged=reopened, num_pairs=30, num_replays=500)
    back = decide(step, facts, plan)
    assert (back.position.phase, back.position.num_pairs_before) == ("shadow", 500)
    assert "made a metric inconclusive" in back.reason
    shown = replace(facts, now_s=NOW_S + 60, judged=replace(reopened, needs_replays=False), num_pairs=80)
    assert decide(back.position, replace(shown, num_replays=549), plan).position.phase == "shadow"
    again = decide(back.position, replace(shown, num_replays=550), plan)
    assert (again.position.phase, again.position.num_pairs_before) == ("step/1", 80)
    repeating = replace(PLAN, steps=(Step(0.1, 20, 6.0),))
    assert decide(step, facts, repeating).position.phase == "step/1"
