"""Tests of a rollout's actions on a server, against a stand-in."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from build.rendering import second_pair
from pipelines.canary.checks.cold_start import ColdStart, Probe
from pipelines.canary.checks.server_figures import memory_of
from pipelines.canary.controller import triton_world
from pipelines.canary.controller.candidate import CandidatePair, read_pair
from pipelines.canary.controller.phases import Position
from pipelines.canary.controller.rollout import Progress, Rollout, arm_table
from pipelines.canary.controller.triton_world import TritonWorld, find_in_service
from pipelines.canary.controller.world import Outcome
from pipelines.canary.run_files import arms_file
from pipelines.canary.server_address import ServerAddress
from pipelines.deploy.ports import Ports
from pipelines.deploy.triton.models import models_at_start
from pipelines.deploy.triton.pair_record import PairRecord
from pipelines.errors import CanaryError
from pipelines.router.arms import read_table
from tests.unit.canary.requests import LIMITS
from tests.unit.canary.simulated_world import begun
from tests.unit.canary.test_preflight import DEMO, GIB, run, write_engine

__all__ = ["run"]


class StandInApi:
    """A stand-in that records calls, such as ``load speculative``."""

    told: list[str]

    def __init__(self, endpoint: str, key: str) -> None:
        assert endpoint.startswith("http://127.0.0.1:")
        assert key == "key"

    def load(self, model: str) -> None:
        self.told.append(f"load {model}")

    def unload(self, model: str) -> None:
        self.told.append(f"unload {model}")

    def close(self) -> None:
        pass


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    StandInApi.told = []
    monkeypatch.setattr(triton_world, "RepositoryApi", StandInApi)
    monkeypatch.setattr(triton_world, "free_bytes", lambda metrics_url: 64 * GIB)
    return StandInApi.told


@pytest.fixture
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that decides which engines the candidate's recipe has."""

    def decide(draft: int, target: int | None = None, **manifest: Any) -> None:
        numbers = {"draft": draft, "target": draft if target is None else target}
        folders = [tmp_path / f"{role}-{number}" for role, number in numbers.items()]
        for folder in folders:
            if not folder.exists():
                write_engine(folder, **{"fingerprint": folder.name, **manifest})

        def render(recipe: str, directory: Path, free: int, public_key: None) -> CandidatePair:
            assert free == triton_world.free_bytes("")  # the server's, not this process's
            record = second_pair.render_second_pair(replace(DEMO, name=recipe), *folders, directory)
            return CandidatePair.read(directory, record.speculative_model)

        monkeypatch.setattr(triton_world, "render_beside", render)

    return decide


def world_of(run: Path, candidate_socket: str = "") -> TritonWorld:
    address = ServerAddress(Ports.free(), "key")
    return TritonWorld(run, address, find_in_service(run).stable.socket, "new", LIMITS, candidate_socket)


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
    world_of(run, loaded.evidence["socket"]).unload()  # by the controller that resumes
    assert told[len(models) :] == [f"unload {model}" for model in reversed(models)]
    assert speculative_models(run) == ["speculative"]


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


def promote(run: Path) -> PairRecord:
    """Promote a candidate as a whole rollout does; return the new pair."""
    world, stable = world_of(run), find_in_service(run).stable
    assert world.preflight().is_good
    loaded = world.load().evidence
    assert world.keep().is_good
    rollout = replace(begun(), stable_socket=stable.socket, control_socket=stable.control_socket)
    position = Position("settling", 0.0)
    progress = Progress(position, 4, loaded["socket"], loaded["control_socket"], loaded["same_target"])
    world.write(arm_table(rollout, progress, 0.0))
    assert world_of_rollout(run, rollout, progress).settle().is_good
    return find_in_service(run).stable


def world_of_rollout(run: Path, rollout: Rollout, progress: Progress) -> TritonWorld:
    """Return the world of a controller that resumes."""
    address = ServerAddress(Ports.free(), "key")
    return TritonWorld(run, address, rollout.stable_socket, "new", LIMITS, progress.candidate_socket)


def test_a_promoted_pair_is_loaded_at_the_start_and_is_the_stable_one(
    run: Path, told: list[str], engines: Callable[..., None]
) -> None:
    before = find_in_service(run)
    assert (before.stable.speculative_model, before.generation) == ("speculative", 0)
    engines(2)
    second = promote(run)
    assert find_in_service(run).generation == 4
    at_start = set(models_at_start(run / "model_repository"))
    assert set(second.models) | {"speculative"} <= at_start
    del told[:]
    engines(3)
    third = promote(run)
    assert third.speculative_model not in ("speculative", second.speculative_model)
    assert [word for word in told if word.startswith("unload")] == [
        f"unload {model}"
        for model in reversed(second.models)  # not speculative: the ensemble answers from it
    ]
    assert speculative_models(run) == ["speculative", third.speculative_model]


def test_the_recipes_own_pair_may_come_back(run: Path, told: list[str], engines: Callable[..., None]) -> None:
    """It was there all the time: nothing is rendered, and nothing of it is removed if it fails."""
    first = find_in_service(run).stable
    files = sorted(path.name for path in (run / "model_repository").iterdir())
    engines(2)
    promote(run)
    engines(1)
    world = world_of(run)
    assert world.preflight().is_good
    loaded = world.load().evidence
    assert (loaded["socket"], loaded["control_socket"]) == (first.socket, first.control_socket)
    assert loaded["same_target"] is False
    del told[:]
    assert world.unload() == "the recipe's own pair stays for the ensemble"
    assert told == []
    assert read_pair(run) == first
    assert promote(run) == first
    assert read_table(arms_file(run)).stable.socket == first.socket
    assert sorted(path.name for path in (run / "model_repository").iterdir()) == files


def test_a_promoted_pair_is_refused_as_a_candidate_and_goes_on(
    run: Path, told: list[str], engines: Callable[..., None]
) -> None:
    engines(2)
    second = promote(run)
    socket = run / Path(second.socket).name
    socket.touch()
    world = world_of(run)
    checked = world.preflight()
    assert not checked.is_good
    assert "it differs from the pair in service" in checked.reason
    del told[:]
    world.unload()  # an abort is carried out before the preflight's result
    assert told == []
    assert read_pair(run, second.speculative_model) == second
    assert second.loads_at_start
    assert socket.exists()


def test_a_candidate_with_the_recipes_target_leaves_it_its_socket(
    run: Path, told: list[str], engines: Callable[..., None]
) -> None:
    """The stable pair has another one by then."""
    engines(2)
    promote(run)
    engines(3, target=1)
    world = world_of(run)
    own = Path(str(world.load().evidence["control_socket"]))
    sockets = (run / "target.sock", own)
    for path in sockets:
        path.touch()
    world.unload()
    assert [path.exists() for path in sockets] == [True, False]


def test_a_pair_that_was_kept_and_then_leaves_is_gone_for_later_servers_too(
    run: Path, told: list[str], engines: Callable[..., None]
) -> None:
    before = models_at_start(run / "model_repository")
    engines(2)
    world = world_of(run)
    world.load()
    world.keep()
    assert models_at_start(run / "model_repository") != before
    world.unload()
    world.unload()
    assert models_at_start(run / "model_repository") == before
    assert speculative_models(run) == ["speculative"]


def test_the_memory_of_all_loaded_pairs_counts(
    run: Path, told: list[str], engines: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    engines(2)
    second = promote(run)
    engines(1)
    monkeypatch.setattr(triton_world, "free_bytes", lambda metrics_url: 0)
    assert world_of(run).preflight().is_good  # it is loaded already
    own, stable, new = (
        replace(each, runtime="tensorrt_llm", gpu_bytes={"0": taken}, gpu_usable_bytes=10, loads_at_start=on)
        for each, taken, on in ((read_pair(run), 4, True), (second, 3, True), (second, 5, False))
    )
    [room] = memory_of(new, [own, stable], lambda: 0)
    assert (room.needed, room.available) == (5, 3)


def test_a_table_that_names_nobody_is_refused(
    run: Path, told: list[str], engines: Callable[..., None]
) -> None:
    engines(2)
    promote(run)
    arms = arms_file(run)
    arms.write_text(arms.read_text().replace(".sock", ".gone"))
    with pytest.raises(CanaryError, match="no pair of the repository has the socket"):
        find_in_service(run)


@pytest.mark.parametrize("folder", [".", "a" * 120])  # the path of a socket has at most 107 bytes
def test_a_process_answers_as_long_as_it_accepts(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    (tmp_path / folder).mkdir(exist_ok=True)
    monkeypatch.setattr(triton_world, "REPOSITORY_ROOT", tmp_path / folder)
    monkeypatch.chdir(tmp_path / folder)
    world = world_of(run)
    assert world.listener("c.sock") is None
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("c.sock")
        listening.listen(0)
        listener = world.listener("c.sock")
        assert listener
        with contextlib.ExitStack() as callers:
            for _ in range(3):  # more than its backlog holds
                caller = callers.enter_context(socket.socket(socket.AF_UNIX))
                caller.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    caller.connect("c.sock")
            assert world.listener("c.sock") == listener, "a process with a full backlog is alive"
    assert (tmp_path / folder / "c.sock").exists()  # as a killed process leaves it
    assert world.listener("c.sock") is None
    (tmp_path / folder / "c.sock").unlink()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("c.sock")
        listening.listen(0)
        assert world.listener("c.sock") not in (None, listener), "another process has taken its place"


@pytest.mark.parametrize(
    ("verdict", "is_good", "needs_review"),
    [("pass", True, False), ("held", False, True), ("fail", False, False)],
)
def test_the_probes_decide_on_the_cold_start(
    verdict: str,
    is_good: bool,
    needs_review: bool,
    run: Path,
    told: list[str],
    engines: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = ColdStart(Probe(), verdict, "mean acceptance length 1.00", {"prompts": []})  # type: ignore[arg-type]

    def probed(url: str, key: str, pair: PairRecord, recipe: str, limits: Any) -> ColdStart:
        assert key == "key", "probes ask a model that is closed to clients"
        return found

    monkeypatch.setattr(triton_world, "cold_start", probed)
    engines(2)
    assert world_of(run).probe() == Outcome(is_good, found.reason, found.evidence, needs_review)
