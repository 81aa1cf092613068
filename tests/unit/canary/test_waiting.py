"""Tests of rollouts that wait for evidence or for a person."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.canary.controller.control import Cycle
from pipelines.canary.controller.state import Store
from pipelines.canary.judge.limits import Limit
from pipelines.canary.report.record import judgement
from tests.unit.canary.simulated_world import EASY_LIMITS, PLAN, SimulatedWorld, begun, controller_of, give
from tests.unit.canary.test_controller import phases, roll_out


def test_requests_of_clients_are_counted_though_every_answer_is_replayed(tmp_path: Path) -> None:
    """Each stable answer is paired with its replay, and its times are still compared with others."""
    plan = replace(PLAN, shadow=replace(PLAN.shadow, share=1.0), max_pairs=100)
    by = replace(EASY_LIMITS, ttft=Limit(-0.5, 5.0))  # never shown
    world, store = SimulatedWorld(tmp_path), Store(tmp_path / "canary.sqlite")
    rollout = begun(plan, by)
    store.begin(rollout)
    controller_of(store, rollout, world).run(lambda cycle: None, world.sleep)
    decision = store.record().transitions[-2]
    assert decision.evidence["num_pairs"] >= plan.max_pairs > decision.evidence["num_pairs"] - 30
    assert decision.reason.startswith(f"no verdict after {decision.evidence['num_pairs']} pairs: ")
    assert "ttft" in decision.reason
    assert decision.evidence["num_replays"] > 2 * plan.max_pairs  # which ended nothing
    assert judgement(store.record()).verdict == "inconclusive"


@pytest.mark.parametrize(("asked_by", "share", "phase"), [(3, 1.0, "step/1"), (None, 1e-9, "shadow")])
def test_without_more_evidence_it_ends_without_a_verdict(
    asked_by: int | None, share: float, phase: str, tmp_path: Path
) -> None:
    """Only the first request of a session counts, so three sessions give no more evidence."""
    plan = replace(PLAN, idle_s=20.0, shadow=replace(PLAN.shadow, share=share))
    world = SimulatedWorld(tmp_path, asked_by=asked_by)
    record = roll_out(world, plan)
    left = record.transitions[-2]
    assert (left.from_phase, left.to_phase) == (phase, "rolling_back")
    assert left.reason.startswith("no new evidence for 22 s: inconclusive: ")
    assert judgement(record).verdict == "inconclusive"


def test_a_candidate_that_needs_review_at_its_cold_start_waits_and_resumes_by_order(tmp_path: Path) -> None:
    world = SimulatedWorld(tmp_path, held=True)
    seen: list[Cycle] = []

    def act(cycle: Cycle) -> None:
        seen.append(cycle)
        if cycle.position.phase == "paused":
            assert world.table.candidate is None
            if sum(each.position.phase == "paused" for each in seen) == 50:
                assert judgement(Store(tmp_path / "canary.sqlite").record()).action == "hold"
                give(tmp_path, "resume")

    record = roll_out(world, act=act)
    assert phases(record)[2:6] == ["cold_start", "paused", "shadow", "step/1"]
    assert phases(record)[-1] == "promoted"
    held = record.transitions[3]
    assert held.reason == "acceptance_rate 0.45, 0.50 at the build"
    assert held.evidence == {"mean_acceptance_length": 3.2, "verdict": "inconclusive"}
    assert record.transitions[4].at_s - held.at_s > 90


def test_a_candidate_that_needs_review_keeps_waiting_under_the_next_controller(tmp_path: Path) -> None:
    world = SimulatedWorld(tmp_path, held=True)

    def interrupt(cycle: Cycle) -> None:
        if cycle.position.phase == "paused":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        roll_out(world, act=interrupt)
    store = Store(tmp_path / "canary.sqlite")
    rollout = store.latest()
    assert rollout is not None
    looks: list[Cycle] = []

    def resume(cycle: Cycle) -> None:
        looks.append(cycle)
        if len(looks) == 3:
            store.give(rollout, "abort")

    controller_of(store, rollout, world).run(resume, world.sleep)
    assert [each.position.phase for each in looks[:3]] == ["paused"] * 3
    assert looks[0].position.pause_reason == "acceptance_rate 0.45, 0.50 at the build"
    assert phases(store.record())[3:] == ["paused", "rolling_back", "aborted"]
    assert not world.state["is_loaded"]


def test_a_waiting_candidate_whose_process_ends_is_rolled_back(tmp_path: Path) -> None:
    world = SimulatedWorld(tmp_path, held=True)

    def crash(cycle: Cycle) -> None:
        if cycle.position.phase == "paused":
            world._crash_at = 0

    record = roll_out(world, act=crash)
    assert phases(record)[3:] == ["paused", "rolling_back", "rolled_back"]
    assert "its socket has refused connections" in record.transitions[-2].reason
