"""Tests of which phase follows which."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.canary.controller.phases import ENDED, PREPARING, Decision, Facts, Position, decide
from pipelines.canary.controller.plan import Plan, Step
from pipelines.canary.controller.rollout import Progress, arm_table, weights_at
from pipelines.canary.controller.world import PhaseResult
from tests.unit.canary.simulated_world import CANDIDATE, PLAN, STABLE, begun

NOW_S = 1000.0
GOOD = PhaseResult(True, "good", {"seen": 1})
BAD = PhaseResult(False, "bad", {"seen": 2})
SERVING = ("shadow", "step/1", "step/2")
MANY: dict[str, Any] = {"num_pairs": 1000, "num_replays": 1000}
FEW: dict[str, Any] = {"num_pairs": 0, "num_replays": 0}


def analysed(
    verdict: str, action: str = "go_on", needs_replays: bool = True, lacks_answers: bool = False
) -> Any:
    found = {"verdict": verdict, "action": action, "needs_replays": needs_replays}
    found |= {"lacks_answers": lacks_answers}
    return SimpleNamespace(**found, reason=f"{verdict}: ttft")


PASS, HOLD, FAIL, OPEN = (
    analysed("pass", "promote"),
    analysed("inconclusive", "hold"),
    analysed("fail", "roll_back"),
    analysed("inconclusive"),
)


def after(phase: str, **facts: Any) -> Decision:
    """Return the decision in a phase that has lasted long, with many pairs; ``paused/shadow`` is a pause."""
    name, _, paused_in = phase.partition("/") if phase.startswith("paused") else (phase, "", "")
    return decide(Position(name, 0.0, 0, paused_in), Facts(NOW_S, **{**MANY, **facts}), PLAN)


STAYS = ""
DOWN, GONE = PLAN.down_after_s, PLAN.down_after_s + 0.1


@pytest.mark.parametrize(
    ("phase", "facts", "following", "verdict"),
    [
        # each preparation must succeed
        *(
            (phase, {"result": GOOD}, following, None)
            for phase, following in zip(PREPARING, (*PREPARING[1:], "shadow"), strict=True)
        ),
        *((phase, {}, STAYS, None) for phase in PREPARING),
        ("preflight", {"result": BAD}, "rolled_back", "fail"),
        ("loading", {"result": BAD}, "rolling_back", "fail"),
        # it rises step by step, and passes before the last lets it go
        ("shadow", {"analysis": PASS}, "step/1", "pass"),
        ("step/1", {"analysis": PASS}, "step/2", "pass"),
        ("step/1", {"analysis": OPEN}, "step/2", "inconclusive"),
        ("step/2", {"analysis": PASS}, "promoting", "pass"),
        ("step/2", {"analysis": OPEN}, STAYS, None),
        ("step/2", {}, STAYS, None),
        # the shadow waits for replays, and a step for requests of clients
        ("shadow", {"num_pairs": 0, "num_replays": PLAN.shadow.min_pairs}, "step/1", None),
        ("shadow", {"num_replays": PLAN.shadow.min_pairs - 1}, STAYS, None),
        ("step/1", {"num_pairs": PLAN.steps[0].min_pairs, "num_replays": 0}, "step/2", None),
        ("step/1", {"num_pairs": PLAN.steps[0].min_pairs - 1, "num_replays": 10**6}, STAYS, None),
        # one that failed leaves, whatever is asked
        *(
            (f"{paused}{phase}", {"analysis": FAIL, "order": order}, "rolling_back", "fail")
            for phase in SERVING
            for paused in ("", "paused/")
            for order in (None, "pause", "resume", "promote")
        ),
        # an abort is obeyed in every phase before the old pair goes
        *(
            (phase, {"order": "abort", "result": GOOD, "analysis": PASS}, "rolling_back", "inconclusive")
            for phase in (*PREPARING, *SERVING, "paused/step/1", "promoting")
        ),
        # a spent sample without a verdict is no pass, nor is silence
        ("step/2", {"analysis": OPEN, "num_pairs": PLAN.max_pairs}, "rolling_back", "inconclusive"),
        ("step/2", {"analysis": PASS, "num_pairs": PLAN.max_pairs}, "promoting", "pass"),
        ("step/1", {"unmeasured": "no server"}, "rolling_back", "inconclusive"),
        ("step/1", {"broken": "the log is lost", "analysis": PASS}, "rolling_back", "inconclusive"),
        *(
            (phase, {**FEW, "idle_s": PLAN.idle_s + late_s}, following, verdict)
            for phase in SERVING
            for late_s, following, verdict in ((0, STAYS, None), (1, "rolling_back", "inconclusive"))
        ),
        ("paused/shadow", {**FEW, "idle_s": 9e9}, STAYS, None),
        # one that does not answer leaves, and one whose process was replaced, however fast
        *(
            (phase, facts, following, verdict)
            for phase in (*SERVING, "promoting")
            for facts, following, verdict in (
                ({**FEW, "down_s": DOWN}, "settling" if phase == "promoting" else STAYS, None),
                ({"down_s": GONE}, "rolling_back", "fail"),
                ({"has_restarted": True, "analysis": PASS}, "rolling_back", "fail"),
            )
        ),
        # one with all requests is watched before the old one goes, after which there is no way back
        ("promoting", {}, "settling", None),
        *(
            each
            for phase, following in (("settling", "retiring"), ("retiring", "promoted"))
            for each in (
                (phase, {}, STAYS, None),
                (phase, {"order": "abort", "down_s": 99.0}, STAYS, None),
                (phase, {"order": "abort", "down_s": 99.0, "result": GOOD}, following, None),
            )
        ),
        *(
            (phase, {"order": "abort", "result": BAD, "analysis": FAIL, "down_s": 99.0}, STAYS, None)
            for phase in ENDED
        ),
    ],
)
def test_each_phase_ends_as_it_has_to(
    phase: str, facts: dict[str, Any], following: str, verdict: str | None
) -> None:
    decision = after(phase, **facts)
    assert decision.position.phase == (following or ("paused" if phase.startswith("paused") else phase))
    assert decision.evidence.get("verdict") == verdict
    assert bool(decision.reason) == bool(following)


def test_reasons_and_evidence_are_those_of_what_was_found() -> None:
    assert after("loading", result=GOOD).evidence == {"seen": 1}
    assert after("step/1", analysis=FAIL).reason == "fail: ttft"
    assert after("loading", result=BAD).reason == "bad"
    assert after("shadow", **FEW, idle_s=99.0).reason == "no new evidence for 99 s"
    assert after("step/1", has_restarted=True).reason == "its process ended and was replaced"
    aborted = after("step/1", order="abort").position
    assert decide(aborted, Facts(NOW_S, result=GOOD), PLAN).position.phase == "aborted"


def test_a_step_has_its_own_pairs_and_its_time() -> None:
    step = PLAN.steps[0]
    early = Position("step/1", NOW_S - step.bake_s, num_pairs_before=500)

    def follows(position: Position, num_pairs: int) -> Position:
        return decide(position, Facts(NOW_S, num_pairs=num_pairs), PLAN).position

    assert follows(early, 500 + step.min_pairs - 1) == early
    assert follows(replace(early, since_s=early.since_s + 0.1), 500 + step.min_pairs).phase == "step/1"
    assert follows(early, 600) == Position("step/2", NOW_S, 600)


def test_a_candidate_that_is_above_a_limit_is_watched_and_then_leaves() -> None:
    held = after("step/1", analysis=HOLD)
    assert (held.position.phase, held.position.held_since_s) == ("step/1", NOW_S)

    def later(seconds: float, now: Any) -> Decision:
        return decide(held.position, Facts(NOW_S + seconds, analysis=now, num_pairs=1000), PLAN)

    assert later(PLAN.hold_s, HOLD).position.phase == "step/1"
    left = later(PLAN.hold_s + 1, HOLD)
    assert (left.position.phase, left.evidence["verdict"]) == ("rolling_back", "inconclusive")
    freed = later(PLAN.hold_s + 1, OPEN).position
    assert (freed.phase, freed.held_since_s) == ("step/2", None)


def test_one_with_all_requests_is_watched_for_a_while() -> None:
    position = Position("promoting", NOW_S - PLAN.watch_s + 0.1)
    assert decide(position, Facts(NOW_S), PLAN).position == position
    assert decide(position, Facts(NOW_S + 0.1), PLAN).position.phase == "settling"


@pytest.mark.parametrize("phase", SERVING)
def test_a_pause_keeps_the_weight_and_a_resume_continues_there(phase: str) -> None:
    paused = after(phase, order="pause", analysis=PASS).position
    assert (paused.phase, paused.paused_in) == ("paused", phase)
    assert weights_at(paused, PLAN) == weights_at(Position(phase, 0.0), PLAN)
    assert decide(paused, Facts(NOW_S + 9e6, analysis=PASS, num_pairs=10**6), PLAN).position == paused
    assert decide(paused, Facts(NOW_S, order="resume"), PLAN).position == Position(phase, 0.0)


def table_at(position: Position, plan: Plan = PLAN, **changes: Any) -> Any:
    progress = Progress(position, 7, CANDIDATE, **changes)
    return arm_table(begun(plan), progress, NOW_S)


@pytest.mark.parametrize(
    ("phase", "candidate"),
    [
        *((phase, None) for phase in (*PREPARING, "rolling_back", "rolled_back", "aborted")),
        *zip((*SERVING, "promoting", "settling"), (0.0, 0.1, 0.25, 1.0, 1.0), strict=True),
    ],
)
def test_the_table_of_each_phase(phase: str, candidate: float | None) -> None:
    table = table_at(Position(phase, 0.0))
    assert table.stable == STABLE
    assert (table.candidate_weight if table.candidate else None) == candidate
    assert sum(table.weights(NOW_S).values()) == pytest.approx(1)
    assert (table.shadow is not None) == (phase in SERVING)
    assert table.replays_match == "stable"
    assert table_at(Position(phase, 0.0), same_target=False).replays_match == "own_target"
    is_proven = phase == "settling"
    assert table.weights(NOW_S + PLAN.lease_s).get("candidate", 0.0) == is_proven
    assert table.weights(NOW_S + 4000).get("candidate", 0.0) == 0


@pytest.mark.parametrize("phase", ["retiring", "promoted"])
def test_a_promoted_pair_is_the_stable_one_without_a_lease(phase: str) -> None:
    table = table_at(Position(phase, 0.0))
    assert (table.stable, table.candidate) == (CANDIDATE, "")
    assert table.weights(NOW_S + 9e9) == {"stable": 1.0}


def one_step(weight: float) -> Plan:
    return replace(PLAN, steps=(Step(weight, 20, 6.0),))


@pytest.mark.parametrize(
    ("weight", "share"), [(0.0, 0.5), (0.1, 0.5), (0.25, 0.5), (0.375, 0.4), (0.5, 0.0), (0.6, 0.0)]
)
def test_a_candidate_never_has_more_to_do_than_the_stable_pair(weight: float, share: float) -> None:
    """With at most half of the requests replayed."""
    assert PLAN.replayed_share(weight) == pytest.approx(share, abs=1e-3)
    plan = one_step(weight) if weight else PLAN
    table = table_at(Position("step/1" if weight else "shadow", 0.0), plan)
    assert (table.shadow.share if table.shadow else 0.0) == pytest.approx(share, abs=1e-3)
    weights = table.weights(NOW_S)
    assert weights["candidate"] + share * weights["stable"] <= max(weights["stable"], weight) + 1e-3


@pytest.mark.parametrize(
    ("weight", "needs_replays", "num_replays", "following"),
    [
        (0.25, False, 1000, "step/1"),
        (0.25, True, 1000, "step/1"),
        (0.5, False, 1000, "step/1"),
        (0.5, True, 1000, "shadow"),
        (0.5, True, PLAN.max_pairs - 1, "shadow"),
        (0.5, True, PLAN.max_pairs, "rolling_back"),
        (0.5, False, PLAN.max_pairs, "step/1"),
    ],
)
def test_a_step_in_which_nothing_is_repeated_waits_until_replays_have_shown_all_they_can(
    weight: float, needs_replays: bool, num_replays: int, following: str
) -> None:
    found = analysed("inconclusive", needs_replays=needs_replays)
    facts = Facts(NOW_S + 60, analysis=found, num_replays=num_replays)
    decision = decide(Position("shadow", NOW_S), facts, one_step(weight))
    assert decision.position.phase == following
    if following == "rolling_back":
        assert decision.reason == f"no verdict after {num_replays} replays: inconclusive: ttft"
        assert decision.evidence["verdict"] == "inconclusive"


@pytest.mark.parametrize(
    ("num_replays", "following"), [(PLAN.max_pairs - 1, "shadow"), (PLAN.max_pairs, "rolling_back")]
)
def test_clients_get_no_answer_of_a_candidate_of_which_none_could_be_compared(
    num_replays: int, following: str
) -> None:
    found = analysed("inconclusive", lacks_answers=True)
    facts = Facts(NOW_S + 60, analysis=found, num_replays=num_replays)
    assert decide(Position("shadow", NOW_S), facts, PLAN).position.phase == following


def test_a_step_without_replays_goes_back_for_more_if_the_last_ones_were_needed() -> None:
    plan, step = one_step(0.5), Position("step/1", NOW_S, 3)
    facts = Facts(NOW_S + 1, analysis=OPEN, num_pairs=30, num_replays=500)
    back = decide(step, facts, plan)
    assert (back.position.phase, back.position.num_pairs_before) == ("shadow", 500)
    assert "made a metric inconclusive" in back.reason
    shown = Facts(
        NOW_S + 60, analysis=analysed("inconclusive", needs_replays=False), num_pairs=80, num_replays=549
    )
    assert decide(back.position, shown, plan).position.phase == "shadow"
    again = decide(back.position, replace(shown, num_replays=550), plan).position
    assert (again.phase, again.num_pairs_before) == ("step/1", 80)
    assert decide(step, facts, one_step(0.1)).position.phase == "step/1"
