"""Tests of rollouts in simulated worlds: the world before, what happens, the decision, the world after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.canary.controller.control import Cycle
from pipelines.canary.controller.phases import Order
from pipelines.canary.controller.state import Store
from pipelines.canary.report.record import RolloutRecord, judgement
from tests.unit.canary.faults import diverging, failing, less_accepted, slower
from tests.unit.canary.simulated_world import (
    PLAN,
    SETTLED,
    STABLE,
    SimulatedWorld,
    begin,
    controller_of,
    give,
    roll_out,
)

UP = ("preflight", "loading", "shadow", "step/1", "step/2", "promoting", "settling", "retiring", "promoted")
BACK = ("rolling_back", "rolled_back")


@dataclass(frozen=True)
class Scenario:
    """One rollout.

    Attributes:
        says: What the reason of the decision, or of what happened after it, must contain.
        orders: Orders that are given when a phase begins.
        at_most: The most requests of clients until the decision.
    """

    world: dict[str, Any]
    says: str
    ends: tuple[str, ...] = BACK
    verdict: str = "fail"
    orders: dict[str, Order] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    at_most: int = 4000


def aborted(phase: str) -> Scenario:
    ends = (phase, "rolling_back", "aborted")
    return Scenario({}, "an operator aborted it", ends, "inconclusive", {phase: "abort"})


SCENARIOS = {
    "good": Scenario({}, "every metric is within its limit", UP, "pass"),
    "diverging": Scenario({"fault": diverging(0.05)}, "fail: answers (tokens of ", at_most=800),
    "less accepted": Scenario({"fault": less_accepted(0.3)}, "acceptance_rate", at_most=800),
    "slower": Scenario({"fault": slower(0.8)}, "ttft", at_most=2500),
    "failing": Scenario({"fault": failing(0.1)}, "errors", at_most=2500),
    "leaking": Scenario({"leaked_per_s": 2e8}, "fail: memory"),
    "another tokenizer": Scenario(
        {"broken": ("preflight",)}, "the tokenizer is another one", ("preflight", "rolled_back")
    ),
    "not loaded": Scenario({"broken": ("load",)}, "the pair could not be loaded", ("loading", *BACK)),
    "crashing": Scenario({"crash_at": 5}, "its socket has refused connections"),
    "unmeasured": Scenario(
        {"broken": ("sample",)},
        "are unknown: memory and CPU time of both pairs cannot be read",
        verdict="inconclusive",
        plan={"idle_s": 60.0, "max_pairs": 9000},
    ),
    # only the first request of a session counts, so three sessions give no more evidence
    "few sessions": Scenario(
        {"asked_by": 3},
        "no new evidence for 22 s: inconclusive: ",
        ("step/1", *BACK),
        "inconclusive",
        plan={"idle_s": 20.0, "shadow": replace(PLAN.shadow, share=1.0)},
    ),
    "no replays": Scenario(
        {},
        "no new evidence for 22 s: inconclusive: ",
        ("shadow", *BACK),
        "inconclusive",
        plan={"idle_s": 20.0, "shadow": replace(PLAN.shadow, share=1e-9)},
    ),
    **{f"aborted in {phase}": aborted(phase) for phase in ("loading", "shadow", "step/2", "promoting")},
    "not unloaded": Scenario({"fault": less_accepted(0.5), "broken": ("unload",)}, "could not be ended"),
    "settled at the second try": Scenario(
        {"broken": ("settle",)}, "every metric is within its limit", UP, "pass"
    ),
}


def phases(record: RolloutRecord) -> list[str]:
    return [each.to_phase for each in record.transitions]


def ordering(world: SimulatedWorld, orders: dict[str, Order]) -> Callable[[Cycle], None]:
    """Return a callback that gives an order as soon as a phase is entered."""

    def act(cycle: Cycle) -> None:
        if cycle.transition is not None and cycle.position.phase in orders:
            give(world.folder, orders[cycle.position.phase])

    return act


@pytest.mark.parametrize("name", SCENARIOS)
def test_each_rollout_ends_as_it_has_to(name: str, tmp_path: Path) -> None:
    scenario = SCENARIOS[name]
    world = SimulatedWorld(tmp_path, **scenario.world)
    begin(tmp_path, replace(PLAN, **scenario.plan))
    record = roll_out(world, ordering(world, scenario.orders))
    assert phases(record)[-len(scenario.ends) :] == list(scenario.ends)
    assert judgement(record).verdict == scenario.verdict
    decision = next(each for each in record.transitions if each.to_phase in ("promoting", *BACK))
    assert any(scenario.says in each.reason for each in record.transitions), phases(record)
    assert world.state["number"] <= scenario.at_most
    assert record.samples or decision.from_phase in UP[:2] or name == "unmeasured"
    table, state = world.table, world.state
    assert (table.candidate, table.canary_id) == ("", "")
    if record.phase == "promoted":
        assert table.stable == SETTLED
        assert state["is_settled"] and not state["is_loaded"]
        return
    assert table.stable == STABLE
    assert table.weights(world.clock()) == {"stable": 1.0}
    assert state["is_loaded"] == (name == "not unloaded")
    world.sleep(4)
    left_s = next(each.at_s for each in record.transitions if each.to_phase in BACK)
    assert world.candidate_requests_since(left_s + 0.001) == 0
    assert record.transitions[-1].at_s - left_s < 3 * PLAN.drain_s


def test_weights_rise_and_divergences_are_kept_as_readable_text(tmp_path: Path) -> None:
    world = SimulatedWorld(tmp_path, diverging(0.02))
    begin(tmp_path)
    record = roll_out(world)
    weights = [each.weights["candidate"] for each in record.transitions]
    assert weights == [*sorted(weights[:-2]), 0, 0]
    found = record.divergences[0]
    assert (found["prompt"], found["expected_text"], found["candidate_text"]) == ("1 + 1 =", " 2", " 3")
    assert (found["differs_in"], found["expected_of"], found["first_difference"]) == ("tokens", "stable", 0)


@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_candidate_whose_process_was_replaced_between_two_cycles_is_rolled_back(
    is_resumed: bool, tmp_path: Path
) -> None:
    world = SimulatedWorld(tmp_path)
    begin(tmp_path)
    store = Store(tmp_path / "canary.sqlite")
    rollout = store.latest()
    assert rollout is not None
    controller = controller_of(store, rollout, world)
    while controller.run_cycle().position.phase != "step/1":
        world.sleep(PLAN.tick_s)
    world.process = 2
    if is_resumed:
        controller = controller_of(store, rollout, world)
    assert controller.run_cycle().position.phase == "rolling_back"
    assert store.record().transitions[-1].reason == "its process ended and was replaced"


def test_observations_that_are_lost_end_the_rollout_without_a_verdict(tmp_path: Path) -> None:
    world = SimulatedWorld(tmp_path)
    begin(tmp_path)

    def lose(cycle: Cycle) -> None:
        if cycle.position.phase == "step/2":
            (world.folder / "observations.sqlite").unlink()

    record = roll_out(world, lose)
    assert record.phase == "rolled_back"
    assert "the evidence cannot be judged" in record.transitions[-2].reason
    assert judgement(record).verdict == "inconclusive"


def interrupted(world: SimulatedWorld, phase: str) -> None:
    """Run the rollout of a world until its controller is interrupted in a phase."""

    def interrupt(cycle: Cycle) -> None:
        if cycle.position.phase == phase:
            raise KeyboardInterrupt

    begin(world.folder)
    with pytest.raises(KeyboardInterrupt):
        roll_out(world, interrupt)


def test_without_a_controller_the_candidate_gets_no_requests(tmp_path: Path) -> None:
    world = SimulatedWorld(tmp_path)
    interrupted(world, "step/2")
    assert world.table.weights(world.clock())["candidate"] == 0
    assert world.table.shadow_at(world.clock()) is None
    assert phases(roll_out(world))[-2:] == ["retiring", "promoted"]


def test_a_promoted_candidate_answers_while_nobody_makes_it_the_stable_one(tmp_path: Path) -> None:
    world = SimulatedWorld(tmp_path)
    interrupted(world, "settling")
    assert world.table.weights(world.clock() + 10 * PLAN.lease_s)["candidate"] == 1
    assert phases(roll_out(world))[-2:] == ["retiring", "promoted"]


def test_what_the_log_has_of_an_earlier_rollout_counts_for_nothing(tmp_path: Path) -> None:
    begin(tmp_path)
    assert any(each.failure for each in roll_out(SimulatedWorld(tmp_path, failing(0.5))).requests)
    begin(tmp_path, canary_id="c2")
    assert roll_out(SimulatedWorld(tmp_path)).phase == "promoted"


@pytest.mark.parametrize(("open_for_s", "waits_s"), [(0.0, 2.0), (3.0, 4.0), (60.0, 4.0)])
def test_a_pair_that_leaves_is_unloaded_once_nobody_waits_for_it(
    open_for_s: float, waits_s: float, tmp_path: Path
) -> None:
    world = SimulatedWorld(tmp_path, open_for_s=open_for_s)
    begin(tmp_path, replace(PLAN, drain_s=4.0))
    leaving, left = roll_out(world, ordering(world, {"shadow": "abort"})).transitions[-2:]
    assert left.reason == "the second server has ended"
    assert left.at_s - leaving.at_s == pytest.approx(waits_s)
