"""What a rollout does to a server, told by a stand-in; run: pytest tests/unit/test_canary_triton_world.py."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from build import beside
from pipelines.canary import memory, triton_world
from pipelines.canary.candidate import CandidatePair, Pair
from pipelines.canary.phases import Position
from pipelines.canary.rollout import Progress
from pipelines.canary.triton_world import TritonWorld, arms_file, find
from pipelines.canary.wanted_arms import wanted_arms
from pipelines.deploy import Ports
from pipelines.deploy.models import PAIR_FILE, models_at_start
from pipelines.errors import CanaryError
from tests.unit.simulated_world import begun
from tests.unit.test_canary_preflight import DEMO, GIB, run, write_engine

__all__ = ["run"]


class StandInApi:
    """Keeps what it was told, as ``load speculative``."""

    told: list[str]

    def __init__(self, endpoint: str) -> None:
        assert endpoint.startswith("http://127.0.0.1:")

    def load(self, model: str) -> None:
        self.told.append(f"load {model}")

    def unload(self, model: str) -> None:
        self.told.append(f"unload {model}")

    def __enter__(self) -> StandInApi:
        return self

    def __exit__(self, *error: object) -> None:
        pass


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    StandInApi.told = []
    monkeypatch.setattr(triton_world, "RepositoryApi", StandInApi)
    monkeypatch.setattr(memory, "available_bytes", lambda: 64 * GIB)
    return StandInApi.told


@pytest.fixture
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Decide which engines the candidate's recipe has."""

    def decide(number: int, **manifest: Any) -> None:
        folders = [
            write_engine(tmp_path / f"{role}-{number}", **{"fingerprint": f"{role}-{number}", **manifest})
            for role in ("draft", "target")
        ]

        def render(recipe: str, directory: Path) -> CandidatePair:
            record = beside.render_beside(replace(DEMO, name=recipe), *folders, directory)
            return CandidatePair.read(directory, record.speculative_model)

        monkeypatch.setattr(triton_world, "render_beside", render)

    return decide


def world_of(run: Path, candidate_socket: str = "") -> TritonWorld:
    return TritonWorld(run, Ports.free(), find(run).stable.socket, "new", candidate_socket)


def speculative_models(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "model_repository").glob("speculative*"))


def test_a_candidate_comes_and_goes(
    run: Path, told: list[str], engines: Callable[..., None], tmp_path: Path
) -> None:
    engines(2)
    world = world_of(run)
    checked = world.preflight()
    assert (checked.is_good, checked.reason) == (True, "8 checks pass")
    json.dumps(checked.evidence)
    loaded = world.load()
    models = loaded.evidence["models"]
    assert told == [f"load {model}" for model in models]
    assert speculative_models(run) == ["speculative", models[-1]]
    world_of(run, loaded.evidence["socket"]).unload()  # by the controller that goes on
    assert told[len(models) :] == [f"unload {model}" for model in reversed(models)]
    assert speculative_models(run) == ["speculative"]


@pytest.mark.parametrize(("target", "is_same"), [("target-1", True), ("target-2", False)])
def test_what_was_loaded_says_whether_its_target_is_the_stable_one(
    run: Path, told: list[str], engines: Callable[..., None], target: str, is_same: bool
) -> None:
    engines(2)
    socket = world_of(run).load().evidence["socket"]
    path = next((run / "model_repository").glob(f"speculative_*/{PAIR_FILE}"))
    path.write_text(json.dumps({**json.loads(path.read_text()), "target_fingerprint": target}))
    assert world_of(run, socket).load().evidence["same_target"] is is_same


def test_a_refused_candidate_leaves_nothing_and_is_not_loaded(
    run: Path, told: list[str], engines: Callable[..., None]
) -> None:
    engines(2, end_ids=[3])
    checked = world_of(run).preflight()
    assert not checked.is_good
    assert "its texts end at the same tokens" in checked.reason
    assert checked.evidence["its texts end at the same tokens"]["candidate"] == [3]
    assert told == []
    assert speculative_models(run) == ["speculative"]


def test_it_loads_also_after_a_controller_was_killed_while_it_did(
    run: Path, told: list[str], engines: Callable[..., None]
) -> None:
    engines(2)
    first = world_of(run).load()
    again = world_of(run).load()
    assert first.evidence["socket"] == again.evidence["socket"]


def promote(run: Path, stable: Pair) -> Pair:
    """As a whole rollout does it; the new pair."""
    world = world_of(run)
    world.preflight()
    candidate_socket = world.load().evidence["socket"]
    rollout = replace(begun(), stable_socket=stable.socket)
    progress = Progress(Position("promoting", 0.0), 4, candidate_socket)
    world.write(wanted_arms(rollout, progress, 0.0))
    world.settle()
    return find(run).stable


def test_a_promoted_pair_is_loaded_at_the_start_and_is_the_stable_one(
    run: Path, told: list[str], engines: Callable[..., None]
) -> None:
    before = find(run)
    assert (before.stable.speculative_model, before.generation) == ("speculative", 0)
    engines(2)
    second = promote(run, before.stable)
    assert find(run).generation == 4
    at_start = set(models_at_start(run / "model_repository"))
    assert set(second.models) | {"speculative", "generate"} <= at_start
    del told[:]
    engines(3)
    third = promote(run, second)
    assert third.speculative_model not in ("speculative", second.speculative_model)
    assert f"unload {second.speculative_model}" in told
    assert "unload speculative" not in told  # generate answers from it
    assert speculative_models(run) == ["speculative", third.speculative_model]


def test_a_table_that_names_nobody_is_refused(
    run: Path, told: list[str], engines: Callable[..., None]
) -> None:
    engines(2)
    promote(run, find(run).stable)
    arms = arms_file(run)
    arms.write_text(arms.read_text().replace(".sock", ".gone"))
    with pytest.raises(CanaryError, match="no pair of the repository answers at a socket"):
        find(run)


def test_a_process_answers_as_long_as_it_accepts(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton_world, "REPOSITORY_ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    world = world_of(run)
    assert not world.is_answering("c.sock")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("c.sock")
        listening.listen()
        assert world.is_answering("c.sock")
    assert (tmp_path / "c.sock").exists()  # as a killed process leaves it
    assert not world.is_answering("c.sock")


@pytest.mark.parametrize("reason", ["", "replica grpc://x: its mean acceptance length is 1.000, near 1"])
def test_the_probes_decide_on_the_cold_start(
    reason: str, run: Path, told: list[str], engines: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    probes = (SimpleNamespace(mean_acceptance_length=1.0),)
    found = SimpleNamespace(probes=probes, reason=reason, evidence={"prompts": []})
    monkeypatch.setattr(triton_world, "cold_start", lambda replicas, pair: found)
    engines(2)
    outcome = world_of(run).probe()
    assert outcome.is_good == (not reason)
    assert outcome.reason == (reason or "mean acceptance length 1.00")
