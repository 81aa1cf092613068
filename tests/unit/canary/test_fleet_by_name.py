"""Tests of rollouts on simulated pods, which are replaced at other addresses and with empty directories."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from pipelines.canary.controller.world import World
from pipelines.canary.fleet.members import WAITS_TO_ADOPT, FoundByName
from tests.unit.canary.simulated_fleet import FLEET_PLAN
from tests.unit.canary.simulated_pods import NamedFleet
from tests.unit.canary.simulated_world import CANDIDATE, CANDIDATE_CONTROL, STABLE
from tests.unit.canary.test_fleet import UP, enters, quick_judge

__all__ = ["quick_judge"]

pytestmark = pytest.mark.usefixtures("quick_judge")

FIRST, SECOND, THIRD = (f"http://10.0.0.{number}:8004" for number in range(3))
NEW = "http://10.0.0.9:8004"


def serve_it(fleet: NamedFleet) -> bool:
    return all(
        [each.socket for each in pod.table.settings.values()] == [CANDIDATE, CANDIDATE_CONTROL]
        for pod in fleet.pods.values()
    )


def test_pods_are_replaced_in_the_middle_and_the_promotion_ends_with_their_packages(tmp_path: Path) -> None:
    """A pod is replaced in a step, one in the promotion at the same address, and one is added after it."""
    fleet = NamedFleet(tmp_path)
    controller = fleet.controller()
    fleet.run_until(lambda look: "pod-2" in {each.server for each in look.requests}, controller)
    del fleet.pods[SECOND]
    fleet.add(NEW)
    fleet.run_until(enters("promoting"), controller)
    by_second = {each.server for each in fleet.store.record().requests}
    assert "pod-2" in by_second, "its evidence stays"
    fleet.run_until(lambda look: all(pod.state["is_kept"] for pod in fleet.pods.values()), controller)
    replaced = fleet.add(THIRD)
    controller = fleet.controller()
    fleet.run_until(lambda look: serve_it(fleet), controller)
    assert replaced.num_brought_up == 1
    late = fleet.add("http://10.0.0.8:8004")
    fleet.run_until(lambda look: serve_it(fleet) and fleet.says[late.name] == WAITS_TO_ADOPT, controller)
    for _ in range(10):
        assert controller.look().position.phase == "settling"
        fleet.sleep(FLEET_PLAN.tick_s)
    assert all(pod.state["is_settled"] for pod in fleet.pods.values())
    for number, address in enumerate(sorted(fleet.pods)):  # the operator has changed the manifest
        fleet.add(f"http://10.0.1.{number}:8004", own=CANDIDATE)
        controller.look()
        assert fleet.phases[-1] == "settling"
        del fleet.pods[address]
        fleet.sleep(FLEET_PLAN.tick_s)
    fleet.run_until(enters("promoted"), controller)
    assert fleet.phases == [*UP, "promoted"]
    assert serve_it(fleet)
    assert all(pod.num_brought_up == 0 for pod in fleet.pods.values())


def test_if_the_first_pod_goes_before_its_probes_the_next_one_is_loaded_and_probed(tmp_path: Path) -> None:
    fleet = NamedFleet(tmp_path)
    controller = fleet.controller()
    fleet.run_until(enters("cold_start"), controller)
    del fleet.pods[FIRST]
    fleet.run_until(enters("shadow"), controller)
    assert [pod.has_candidate for pod in fleet.pods.values()] == [True, False]
    assert "pod-1" not in fleet.says, "it had no part in the rollout"


def test_a_pod_without_an_address_is_away_until_its_lease_has_ended_and_then_counts_no_more(
    tmp_path: Path,
) -> None:
    fleet = NamedFleet(tmp_path)
    controller = fleet.controller()
    fleet.run_until(enters("step/1"), controller)
    gone = [fleet.pods.pop(address) for address in (SECOND, THIRD)]
    fleet.is_silent = True  # DNS says nothing, so nobody is gone
    for _ in range(8):
        assert controller.look().waits_for.startswith("a majority of the servers; 2 of 3 are away")
        fleet.sleep(FLEET_PLAN.tick_s)
    controller = fleet.controller()
    for _ in range(8):
        assert controller.look().waits_for, "it knows no address, and that says nothing of the servers"
        fleet.sleep(FLEET_PLAN.tick_s)
    fleet.is_silent = False
    began_s = fleet.now_s
    fleet.run_until(lambda look: not look.waits_for, controller)
    waited_s = fleet.now_s - began_s + FLEET_PLAN.tick_s  # since the last look without an answer
    assert FLEET_PLAN.lease_s < waited_s < FLEET_PLAN.lease_s + 3 * FLEET_PLAN.tick_s
    controller = fleet.controller()
    fleet.run_until(lambda look: not look.waits_for, controller)
    fleet.pods[SECOND] = gone[0]
    assert not controller.look().waits_for
    assert fleet.says[gone[0].name] == ""


def test_a_pod_that_is_gone_leaves_nothing_behind(tmp_path: Path) -> None:
    fleet = NamedFleet(tmp_path)

    def world(*made: str) -> World:
        return cast(World, made)

    find = FoundByName(fleet._look_up, fleet._describe, world, STABLE, (), FLEET_PLAN.lease_s, fleet.clock)
    find("", is_stable=False)
    del fleet.pods[THIRD]
    fleet.add(SECOND)
    fleet.now_s += FLEET_PLAN.lease_s + 1
    assert find("", is_stable=False).names == ("pod-1", "pod-4")
    assert find._worlds.keys() == {(FIRST, "pod-1"), (SECOND, "pod-4")}
    assert find._server_at == {FIRST: "pod-1", SECOND: "pod-4"}


def test_a_rollback_waits_for_pods_with_the_package_and_for_none_that_is_gone_or_has_a_third_one(
    tmp_path: Path,
) -> None:
    fleet = NamedFleet(tmp_path)
    controller = fleet.controller()
    fleet.run_until(enters("step/1"), controller)
    early = fleet.add(SECOND, own=CANDIDATE)
    other = fleet.add(NEW, own="run/third.sock")
    fleet.store.give(fleet.rollout, "abort")
    fleet.run_until(enters("rolling_back"), controller)
    del fleet.pods[THIRD]
    for _ in range(10):
        fleet.sleep(FLEET_PLAN.tick_s)
        assert controller.look().position.phase == "rolling_back"
    assert not fleet.pods[FIRST].state["is_loaded"]
    assert "its own package is the candidate's" in fleet.says[early.name]
    assert "another pair than the rollout" in fleet.says[other.name]
    back = fleet.add(SECOND)
    fleet.run_until(enters("aborted"), controller)
    assert back.table.stable.socket == STABLE and back.table.candidate is None
    assert other.table.generation == 0


def test_an_arrival_that_ends_with_its_pod_rolls_nothing_back(tmp_path: Path) -> None:
    fleet = NamedFleet(tmp_path)
    controller = fleet.controller()
    fleet.run_until(enters("step/2"), controller)
    fleet.pods[SECOND]._broken = ("probe",)
    servers = controller._servers
    bring_up = servers.bring_up

    def and_then_it_ends(share: float, candidate: str) -> object:
        if servers._arrivals._pending.get("pod-2") is not None and SECOND in fleet.pods:
            servers._arrivals._pending["pod-2"].result()
            del fleet.pods[SECOND]
        return bring_up(share, candidate)

    servers.bring_up = and_then_it_ends  # type: ignore[assignment, method-assign]
    fleet.run_until(enters("promoting"), controller)
    assert SECOND not in fleet.pods
