"""Tests of rollouts in simulated worlds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.canary.controller.control import Cycle
from pipelines.canary.controller.phases import Order
from pipelines.canary.controller.plan import Plan
from pipelines.canary.controller.state import Store
from pipelines.canary.judge.limits import Limit
from pipelines.canary.report.record import RolloutRecord, judgement
from tests.unit.canary.faults import NO_FAULT, diverging, failing, less_accepted, slower
from tests.unit.canary.simulated_world import (
    CANDIDATE,
    CANDIDATE_CONTROL,
    EASY_LIMITS,
    PLAN,
    STABLE,
    SimulatedWorld,
    begun,
    controller_of,
    give,
)

Act = Callable[[Cycle], None]


def roll_out(world: SimulatedWorld, plan: Plan = PLAN, act: Act = lambda cycle: None) -> RolloutRecord:
    """Run a rollout from beginning to end."""
    store = Store(world.folder / "canary.sqlite")
    rollout = begun(plan)
    store.begin(rollout)
    controller_of(store, rollout, world).run(act, world.sleep)
    return store.record()


def phases(record: RolloutRecord) -> list[str]:
    return [each.to_phase for each in record.transitions]


def ordering(world: SimulatedWorld, orders: dict[str, Order]) -> Act:
    """Return a callback that gives an order as soon as a phase is entered."""

    def act(cycle: Cycle) -> None:
        if cycle.transition is not None and cycle.position.phase in orders:
            give(world.folder, orders[cycle.position.phase])

    return act


def test_a_good_candidate_is_promoted_through_every_phase(tmp_path: Path) -> None:
    world = SimulatedWorld(tmp_path)
    record = roll_out(world)
    assert phases(record) == [
        *("preflight", "loading", "cold_start", "shadow", "step/1", "step/2"),
        *("promoting", "settling", "promoted"),
    ]
    weights = [each.weights["candidate"] for each in record.transitions]
    assert weights == [0, 0, 0, 0, 0.1, 0.25, 1, 0, 0]
    assert judgement(record).verdict == "pass"
    assert world.table.stable.socket == CANDIDATE
    assert world.table.control is not None
    assert world.table.control.socket == CANDIDATE_CONTROL
    assert world.table.canary_id == ""
    assert world.state["is_settled"]


@pytest.mark.parametrize(
    ("fault", "losses", "at_most"),
    [
        (diverging(0.02), {"answers"}, 800),
        (less_accepted(0.3), {"acceptance_rate"}, 800),
        (slower(0.8), {"ttft", "itl"}, 2500),
        (failing(0.1), {"errors"}, 2500),
    ],
)
def test_each_fault_is_rolled_back_within_its_number_of_requests(
    fault: Any, losses: set[str], at_most: int, tmp_path: Path
) -> None:
    world = SimulatedWorld(tmp_path, fault)
    record = roll_out(world)
    assert phases(record)[-2:] == ["rolling_back", "rolled_back"]
    decision = record.transitions[-2]
    failed = {each["loss"] for each in decision.evidence["losses"] if each["verdict"] == "fail"}
    assert losses & failed
    assert decision.reason.startswith("fail: ")
    assert judgement(record).verdict == "fail"
    assert world.state["number"] <= at_most
    assert world.candidate_requests_since(decision.at_s + 0.001) == 0
    assert world.table.stable.socket == STABLE
    assert world.table.weights(world.clock()) == {"stable": 1.0, "control": 0.0}
    assert not world.state["is_loaded"]


def test_divergences_are_kept_as_readable_text(tmp_path: Path) -> None:
    record = roll_out(SimulatedWorld(tmp_path, diverging(0.02)))
    assert record.divergences[0] == {
        "prompt": "1 + 1 =",
        "expected_of": "stable",
        "differs_in": "tokens",
        "expected_text": " 2",
        "candidate_text": " 3",
        "first_difference": 0,
        "expected": "",
        "candidate": "",
    }


@pytest.mark.parametrize(
    ("broken", "last", "says"),
    [
        ("preflight", "loading", "the tokenizer is another one"),
        ("load", "cold_start", "the pair could not be loaded"),
        ("probe", "shadow", "mean acceptance length 1.0"),
    ],
)
def test_what_fails_before_traffic_gets_none(broken: str, last: str, says: str, tmp_path: Path) -> None:
    world = SimulatedWorld(tmp_path, broken=(broken,))
    record = roll_out(world)
    assert phases(record)[-1] == "rolled_back"
    assert last not in phases(record)
    assert any(says in each.reason for each in record.transitions)
    assert judgement(record).verdict == "fail"
    world.sleep(4)
    assert world.state["candidates"] == []
    assert not world.state["is_loaded"]


def test_a_candidate_whose_process_ends_is_rolled_back(tmp_path: Path) -> None:
    world = SimulatedWorld(tmp_path, crash_at=5)
    record = roll_out(world)
    assert phases(record)[-1] == "rolled_back"
    assert "its socket has refused connections" in record.transitions[-2].reason
    assert judgement(record).verdict == "fail"
    assert any(each.failure == "error" and each.arm == "candidate" for each in record.requests)


@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_candidate_whose_process_was_replaced_between_two_looks_is_rolled_back(
    is_resumed: bool, tmp_path: Path
) -> None:
    world = SimulatedWorld(tmp_path)
    store, rollout = Store(tmp_path / "canary.sqlite"), begun(PLAN, EASY_LIMITS)
    store.begin(rollout)
    controller = controller_of(store, rollout, world)
    while controller.run_cycle().position.phase != "step/1":
        world.sleep(PLAN.tick_s)
    world.process = 2
    if is_resumed:
        controller = controller_of(store, rollout, world)
    assert controller.run_cycle().position.phase == "rolling_back"
    assert store.record().transitions[-1].reason == "its process ended and was replaced"


@pytest.mark.parametrize("phase", ["loading", "shadow", "step/2", "promoting"])
def test_an_abort_takes_the_candidate_away(phase: str, tmp_path: Path) -> None:
    world = SimulatedWorld(tmp_path)
    record = roll_out(world, act=ordering(world, {phase: "abort"}))
    assert phases(record)[-3:] == [phase, "rolling_back", "aborted"]
    assert judgement(record).verdict == "inconclusive"
    assert world.table.stable.socket == STABLE
    assert not world.state["is_loaded"]


@pytest.mark.parametrize(
    ("broken", "fault", "last", "says"),
    [
        ("unload", less_accepted(0.5), "rolled_back", "could not be unloaded"),
        ("keep", NO_FAULT, "rolled_back", "could not be made permanent"),
        ("settle", NO_FAULT, "promoted", "the former stable pair could not be unloaded"),
    ],
)
def test_a_server_that_does_not_follow_at_the_end_is_named(
    broken: str, fault: Any, last: str, says: str, tmp_path: Path
) -> None:
    world = SimulatedWorld(tmp_path, fault, broken=(broken,))
    record = roll_out(world)
    assert record.transitions[-1].to_phase == last
    assert any(says in each.reason for each in record.transitions[-2:])
    assert record.transitions[-1].at_s - record.transitions[-2].at_s < 3 * PLAN.drain_s


def test_observations_that_are_lost_end_the_rollout_without_a_verdict(tmp_path: Path) -> None:
    world = SimulatedWorld(tmp_path)

    def lose(cycle: Cycle) -> None:
        if cycle.position.phase == "step/2":
            with (world.folder / f"observations.jsonl.{0:015d}").open("ab") as file:
                file.write(b'{"format": 99}\n')

    record = roll_out(world, act=lose)
    assert phases(record)[-2:] == ["rolling_back", "rolled_back"]
    assert "the evidence cannot be judged" in record.transitions[-2].reason
    assert judgement(record).verdict == "inconclusive"


def test_without_a_controller_the_candidate_gets_no_requests(tmp_path: Path) -> None:
    world = SimulatedWorld(tmp_path)

    def interrupt(cycle: Cycle) -> None:
        if cycle.position.phase == "step/2":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        roll_out(world, act=interrupt)
    assert world.table.weights(world.clock())["candidate"] == 0
    assert world.table.shadow_at(world.clock()) is None
    store = Store(tmp_path / "canary.sqlite")
    rollout = store.latest()
    assert rollout is not None
    controller_of(store, rollout, world).run(lambda cycle: None, world.sleep)
    assert phases(store.record())[-2:] == ["settling", "promoted"]


def test_what_the_log_has_of_an_earlier_rollout_counts_for_nothing(tmp_path: Path) -> None:
    world = SimulatedWorld(tmp_path, failing(0.5))
    assert any(each.failure for each in roll_out(world).requests)
    world = SimulatedWorld(tmp_path)
    store, rollout = Store(tmp_path / "canary.sqlite"), begun(canary_id="c2")
    store.begin(rollout)
    controller_of(store, rollout, world).run(lambda cycle: None, world.sleep)
    assert phases(store.record())[-1] == "promoted"


@pytest.mark.parametrize(("open_for_s", "waits_s"), [(0.0, 2.0), (3.0, 4.0), (60.0, 4.0)])
def test_a_pair_that_leaves_is_unloaded_once_nobody_waits_for_it(
    open_for_s: float, waits_s: float, tmp_path: Path
) -> None:
    world = SimulatedWorld(tmp_path, open_for_s=open_for_s)
    record = roll_out(world, replace(PLAN, drain_s=4.0), ordering(world, {"step/1": "abort"}))
    leaving, left = record.transitions[-2:]
    assert left.reason == "its pair is unloaded"
    assert left.at_s - leaving.at_s == pytest.approx(waits_s)


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
