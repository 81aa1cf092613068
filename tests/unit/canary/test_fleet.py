"""Tests of rollouts on a simulated fleet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.canary.controller import control
from pipelines.canary.controller.control import Look
from pipelines.canary.judge.observed import ObservedRequest
from pipelines.canary.report.record import judgement
from tests.unit.canary.faults import NO_FAULT, failing
from tests.unit.canary.simulated_fleet import FLEET_PLAN, NAMES, SimulatedFleet
from tests.unit.canary.simulated_world import CANDIDATE, CANDIDATE_CONTROL, STABLE

UP = (
    *("preflight", "loading", "cold_start", "shadow", "step/1", "step/2", "step/3", "step/4"),
    *("promoting", "settling"),
)


_SEEN_ENOUGH = 20


@pytest.fixture
def quick_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judge by a look at the failures: the judge itself is tested elsewhere, and takes its time."""

    def judge(requests: list[ObservedRequest], *more: object) -> Any:
        asked = [each for each in requests if each.arm == "candidate"]
        failed = sum(bool(each.failure) for each in asked)
        verdict = "fail" if failed > 2 else "pass" if len(asked) > _SEEN_ENOUGH else "inconclusive"
        action = {"fail": "roll_back", "pass": "promote", "inconclusive": "go_on"}[verdict]
        return SimpleNamespace(verdict=verdict, action=action, judged=())

    monkeypatch.setattr(control, "analyse", judge)
    monkeypatch.setattr(control, "analysis_section", lambda analysis: SimpleNamespace(document={}))


def enters(phase: str) -> Callable[[Look], bool]:
    return lambda look: look.position.phase == phase


def check_promoted(fleet: SimulatedFleet) -> None:
    assert fleet.phases == [*UP, "promoted"]
    for server in fleet.servers:
        sockets = [each.socket for each in server.table.settings.values()]
        assert sockets == [CANDIDATE, CANDIDATE_CONTROL]
        assert server.table.canary_id == ""
        assert server.state["is_kept"] and server.state["is_settled"]


def check_rolled_back(fleet: SimulatedFleet, last: str = "rolled_back") -> None:
    assert fleet.phases[-2:] == ["rolling_back", last]
    for server in fleet.servers:
        assert server.table.stable.socket == STABLE
        assert server.table.candidate is None
        assert not server.state["is_loaded"] and not server.state["is_kept"]


def test_a_good_candidate_goes_from_one_server_to_all(tmp_path: Path) -> None:
    fleet = SimulatedFleet(tmp_path)
    had: dict[str, list[bool]] = {}

    def note(look: Look) -> None:
        had[look.position.phase] = [server.has_candidate for server in fleet.servers]

    record = fleet.run(note)
    check_promoted(fleet)
    assert had["shadow"] == had["step/1"] == had["step/2"] == [True, False, False]
    assert had["step/3"] == [True, True, False]
    assert had["step/4"] == [True, True, True]
    assert judgement(record).verdict == "pass"
    assert {each.server for each in record.requests if each.arm == "candidate"} == set(NAMES)
    assert {each.server for each in record.samples} == set(NAMES)
    assert [server.num_brought_up for server in fleet.servers] == [1, 1, 1]


@pytest.mark.usefixtures("quick_judge")
@pytest.mark.parametrize(
    "phase",
    # No look ends in the preflight: a controller that is killed there has stored nothing.
    [
        pytest.param(phase, marks=[pytest.mark.long] * (phase not in ("step/3", "settling")))
        for phase in UP[1:]
    ],
)
def test_a_controller_that_is_killed_in_a_phase_is_resumed_by_another(phase: str, tmp_path: Path) -> None:
    fleet = SimulatedFleet(tmp_path)
    fleet.run_until(enters(phase))
    fleet.sleep(FLEET_PLAN.lease_s + 1)
    assert not any(server.has_candidate for server in fleet.servers), "the leases have ended"
    fleet.run()
    check_promoted(fleet)
    assert fleet.servers[0].num_brought_up <= 2, "what is up is not brought up again"


@pytest.mark.parametrize("place", [0, pytest.param(2, marks=pytest.mark.long)])
def test_a_candidate_that_is_bad_on_one_server_leaves_all_of_them_at_once(place: int, tmp_path: Path) -> None:
    faults = [NO_FAULT] * 3
    faults[place] = failing(0.9)
    fleet = SimulatedFleet(tmp_path, faults)
    fleet.run_until(enters("rolling_back"))
    assert not any(server.has_candidate for server in fleet.servers)
    record = fleet.run()
    check_rolled_back(fleet)
    assert judgement(record).verdict == "fail"
    assert "errors" in judgement(record).reason
    assert ("step/3" in fleet.phases) == (place == 2)


@pytest.mark.usefixtures("quick_judge")
def test_a_server_that_restarts_is_brought_up_again(tmp_path: Path) -> None:
    fleet = SimulatedFleet(tmp_path)
    controller = fleet.controller()
    fleet.run_until(enters("step/4"), controller)
    fleet.run_until(lambda look: fleet.servers[1].has_candidate, controller)
    fleet.servers[1].restart()
    controller.look()
    assert not fleet.servers[1].has_candidate, "it does not have it any more"
    assert fleet.servers[0].has_candidate
    controller.run(lambda look: None, fleet.sleep)
    check_promoted(fleet)
    assert [server.num_brought_up for server in fleet.servers] == [1, 2, 1]


@pytest.mark.usefixtures("quick_judge")
def test_the_rollout_goes_on_without_a_server_that_is_away_and_promotes_it_when_it_is_back(
    tmp_path: Path,
) -> None:
    fleet = SimulatedFleet(tmp_path)
    controller = fleet.controller()
    fleet.run_until(enters("step/2"), controller)
    fleet.servers[2].is_away = True
    fleet.run_until(enters("settling"), controller)
    for _ in range(20):
        assert controller.look().position.phase == "settling"
        fleet.sleep(FLEET_PLAN.tick_s)
    assert "no agent answers" in fleet.record.servers[NAMES[2]]
    assert fleet.servers[0].state["is_settled"] and not fleet.servers[2].state["is_kept"]
    fleet.servers[2].is_away = False
    fleet.servers[2].restart()
    controller.run(lambda look: None, fleet.sleep)
    check_promoted(fleet)


@pytest.mark.usefixtures("quick_judge")
def test_a_server_that_comes_back_with_another_pair_gets_nothing_and_is_named(tmp_path: Path) -> None:
    fleet = SimulatedFleet(tmp_path)
    controller = fleet.controller()
    fleet.run_until(enters("step/4"), controller)
    fleet.run_until(lambda look: fleet.servers[2].has_candidate, controller)
    fleet.servers[2].pair = "an older engine"
    written = fleet.servers[2].table.generation
    fleet.run_until(enters("settling"), controller)
    assert fleet.servers[2].table.generation == written
    assert "another pair in service; an older engine" in fleet.record.servers[NAMES[2]]
    fleet.sleep(FLEET_PLAN.lease_s)
    assert not fleet.servers[2].has_candidate
    fleet.servers[2].pair = ""
    fleet.servers[2].restart()
    controller.run(lambda look: None, fleet.sleep)
    check_promoted(fleet)


@pytest.mark.usefixtures("quick_judge")
def test_an_agent_that_fails_ends_no_rollout_and_is_named(tmp_path: Path) -> None:
    fleet = SimulatedFleet(tmp_path)
    controller = fleet.controller()
    fleet.run_until(enters("step/2"), controller)
    fleet.servers[2].has_defect = True
    fleet.run_until(enters("step/3"), controller)
    assert "away: an agent failed" in fleet.record.servers[NAMES[2]]
    fleet.servers[2].has_defect = False
    controller.run(lambda look: None, fleet.sleep)
    check_promoted(fleet)


@pytest.mark.usefixtures("quick_judge")
def test_a_kept_server_that_misses_the_last_table_settles_only_with_it(tmp_path: Path) -> None:
    fleet = SimulatedFleet(tmp_path)
    controller = fleet.controller()
    fleet.run_until(enters("promoting"), controller)
    fleet.run_until(lambda look: all(server.state["is_kept"] for server in fleet.servers), controller)
    fleet.servers[1].is_away = True
    controller.look()
    fleet.servers[1].restart()
    fleet.servers[1].is_away = False
    controller.run(lambda look: None, fleet.sleep)
    check_promoted(fleet)


@pytest.mark.usefixtures("quick_judge")
def test_a_late_server_that_cannot_be_kept_yet_is_waited_for(tmp_path: Path) -> None:
    fleet = SimulatedFleet(tmp_path)
    controller = fleet.controller()
    fleet.run_until(enters("step/2"), controller)
    late = fleet.servers[2]
    late.is_away = True
    fleet.run_until(enters("settling"), controller)
    late.is_away, late._broken = False, ("keep",)
    fleet.run_until(lambda look: "could not be written" in fleet.record.servers[NAMES[2]], controller)
    late._broken = ()
    controller.run(lambda look: None, fleet.sleep)
    check_promoted(fleet)


@pytest.mark.usefixtures("quick_judge")
def test_without_a_majority_the_rollout_waits_and_says_for_whom(tmp_path: Path) -> None:
    fleet = SimulatedFleet(tmp_path)
    controller = fleet.controller()
    fleet.run_until(enters("step/2"), controller)
    for server in fleet.servers[1:]:
        server.is_away = True
    for _ in range(60):  # longer than idle_s and the step
        look = controller.look()
        assert look.position.phase == "step/2"
        fleet.sleep(FLEET_PLAN.tick_s)
    assert look.waits_for.startswith("a majority of the servers; 2 of 3 are away: http://b:8004")
    assert fleet.servers[0].has_candidate, "its traffic goes on"
    fleet.servers[1].is_away = False
    fleet.run_until(enters("step/3"), controller)


@pytest.mark.usefixtures("quick_judge")
def test_a_rollback_waits_for_no_majority_and_reaches_who_comes_back(tmp_path: Path) -> None:
    fleet = SimulatedFleet(tmp_path)
    controller = fleet.controller()
    fleet.run_until(enters("step/4"), controller)
    fleet.run_until(lambda look: fleet.servers[2].has_candidate, controller)
    for server in fleet.servers[1:]:
        server.is_away = True
    fleet.give("abort")
    assert controller.look().position.phase == "rolling_back"
    assert not fleet.servers[0].has_candidate
    fleet.sleep(3 * FLEET_PLAN.lease_s)
    assert not any(server.has_candidate for server in fleet.servers), "their leases have ended"
    assert controller.look().position.phase == "rolling_back"
    for server in fleet.servers[1:]:
        server.is_away = False
    controller.run(lambda look: None, fleet.sleep)
    check_rolled_back(fleet, "aborted")


@pytest.mark.usefixtures("quick_judge")
def test_a_candidate_that_cannot_be_loaded_on_a_later_server_leaves_all(tmp_path: Path) -> None:
    fleet = SimulatedFleet(tmp_path)
    fleet.servers[2]._broken = ("probe",)
    record = fleet.run()
    check_rolled_back(fleet)
    assert record.transitions[-2].from_phase == "step/4"
    assert record.transitions[-2].reason == f"{NAMES[2]}: mean acceptance length 1.0"


@pytest.mark.usefixtures("quick_judge")
def test_servers_with_different_candidates_under_one_name_are_refused_with_their_engines(
    tmp_path: Path,
) -> None:
    fleet = SimulatedFleet(tmp_path)
    fleet.servers[1].engines = "other"
    record = fleet.run()
    assert record.phase == "rolled_back"
    assert f"{NAMES[1]}: draft of other" in record.transitions[-1].reason
    assert f"{NAMES[0]}: draft of {CANDIDATE}" in record.transitions[-1].reason
    assert not any(server.state["is_loaded"] for server in fleet.servers)


@pytest.mark.long
@pytest.mark.usefixtures("quick_judge")
def test_a_server_that_was_away_at_the_preflight_with_another_candidate_is_not_served_by_it(
    tmp_path: Path,
) -> None:
    fleet = SimulatedFleet(tmp_path)
    controller = fleet.controller()
    fleet.servers[2].is_away, fleet.servers[2].engines = True, "other"
    fleet.run_until(enters("shadow"), controller)
    fleet.servers[2].is_away = False
    controller.run(lambda look: None, fleet.sleep)
    check_rolled_back(fleet)
    assert "another candidate under this name" in fleet.record.transitions[-2].reason
    assert fleet.servers[2].num_brought_up == 0


@pytest.mark.long
@pytest.mark.usefixtures("quick_judge")
def test_a_pause_holds_the_whole_fleet(tmp_path: Path) -> None:
    fleet = SimulatedFleet(tmp_path)
    controller = fleet.controller()
    fleet.run_until(enters("step/3"), controller)
    fleet.give("pause")
    assert controller.look().position.phase == "paused"
    for _ in range(10):
        fleet.sleep(FLEET_PLAN.tick_s)
        assert controller.look().position.phase == "paused"
    assert not fleet.servers[2].has_candidate
    fleet.give("resume")
    controller.run(lambda look: None, fleet.sleep)
    assert fleet.phases[-1] == "promoted"
