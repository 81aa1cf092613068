"""Tests of what every world of a rollout must do: our own servers, those of others, and the simulated one.

After a controller was killed, the next one does not know how far it got, so each step is safe to repeat.
``test_canary_drills.py`` and ``test_rolling_out.py`` run whole rollouts on real servers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from pipelines.canary.controller.phases import Position
from pipelines.canary.controller.rollout import Progress, Rollout, arm_table
from pipelines.canary.controller.world import Outcome, World
from pipelines.canary.run_files import arms_file
from pipelines.router.arms import read_table
from pipelines.upstreams.world import UpstreamWorld
from pipelines.validation.openai.server.endpoint import Endpoint
from tests.support.stand_in_openai import stand_in_openai
from tests.unit.canary.conftest import Place
from tests.unit.canary.simulated_world import SimulatedWorld, begun


@dataclass
class Served:
    """A world, the folder of its files, and the rollout that acts on it."""

    world: World
    folder: Path
    rollout: Rollout


@pytest.fixture(params=["simulated", "own", "upstreams"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    if request.param == "simulated":
        yield Served(SimulatedWorld(tmp_path), tmp_path, begun())
    elif request.param == "own":
        place: Place = request.getfixturevalue("place")
        rollout = replace(begun(), stable_socket=place.stable.socket)
        yield Served(place.world(), place.run, rollout)
    else:
        with stand_in_openai() as old, stand_in_openai() as new:
            endpoints = {"old": Endpoint(old.url), "new": Endpoint(new.url)}
            rollout = replace(begun(), stable_socket="old")
            yield Served(UpstreamWorld(tmp_path, endpoints, "old", "new"), tmp_path, rollout)


def twice(served: Served, step: str) -> Outcome:
    """Take a step twice, with the same result."""
    first, second = getattr(served.world, step)(), getattr(served.world, step)()
    assert (first.is_good, first.evidence.keys()) == (second.is_good, second.evidence.keys())
    assert first.reason and json.dumps(first.evidence)
    found: Outcome = second
    return found


def enter(served: Served, phase: str, loaded: Outcome) -> None:
    """Write the table of arms of a phase, as the controller does before the work of that phase."""
    evidence = loaded.evidence
    sockets = evidence["socket"], evidence["control_socket"], evidence["same_target"]
    table = arm_table(served.rollout, Progress(Position(phase, 0.0), 7, *sockets), 0.0)
    served.world.write(table)
    assert read_table(arms_file(served.folder)) == table, "the router follows this file"


def prepared(served: Served) -> Outcome:
    assert twice(served, "preflight").is_good
    loaded = twice(served, "load")
    assert loaded.is_good and isinstance(loaded.evidence["same_target"], bool)
    assert isinstance(loaded.evidence["socket"], str) and isinstance(loaded.evidence["control_socket"], str)
    return loaded


def test_a_candidate_can_be_promoted_by_controllers_that_are_killed(served: Served) -> None:
    loaded = prepared(served)
    enter(served, "settling", loaded)
    settled = twice(served, "settle").evidence
    enter(served, "retiring", Outcome(True, "", {**loaded.evidence, **settled}))
    assert served.world.unload() and served.world.unload()
    expected = settled.get("socket", loaded.evidence["socket"])
    assert read_table(arms_file(served.folder)).stable.socket == expected


@pytest.mark.parametrize("phase", ["shadow", "promoting"])
def test_a_candidate_can_be_taken_away_by_controllers_that_are_killed(phase: str, served: Served) -> None:
    loaded = prepared(served)
    enter(served, phase, loaded)
    enter(served, "rolling_back", loaded)
    assert served.world.unload() and served.world.unload()
    assert read_table(arms_file(served.folder)).candidate is None


def test_observations_are_read_from_the_end_on(served: Served) -> None:
    end = served.world.observations_end()
    assert served.world.observations(end) == ([], end)
