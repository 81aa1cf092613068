"""Tests of a pair with another target on a real server: it takes over, goes back, and fails.

The two targets answer every request differently, so an answer shows which of them gave it.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import pytest
import yaml

from build.rendering import second_pair
from build.repository import render_recipe
from pipelines.canary.controller import triton_world
from pipelines.canary.controller.candidate import CandidatePair, read_pair
from pipelines.canary.controller.control import Cycle
from pipelines.canary.controller.orders import give_order
from pipelines.canary.controller.phases import Order
from pipelines.canary.controller.plan import Shadow, Step
from pipelines.canary.controller.triton_world import ServerAddress, TritonWorld, find_in_service
from pipelines.canary.judge.limits import Limit
from pipelines.canary.report.record import RolloutRecord
from pipelines.canary.run_files import arms_file, state_file
from pipelines.canary.start import start
from pipelines.client import CompletionRequest, Generation
from pipelines.deploy.server import Server
from pipelines.errors import CanaryError
from pipelines.router.arms import Arm, read_table
from tests.drills.setting import ONE_BAND
from tests.integration.conftest import grpc_client, repository_api, tiny_recipe
from tests.integration.test_two_pairs import processes
from tests.support.ready_server import ready_server
from tests.support.tiny_engines import build_tiny_pair
from tests.unit.canary.simulated_world import EASY_LIMITS, begun
from tests.unit.canary.simulated_world import PLAN as EASY_PLAN

# test_canary_drills.py promotes and rolls back pairs with the same target, test_two_pairs.py loads others.
pytestmark = [pytest.mark.triton, pytest.mark.long]

FIRST, SECOND = "tiny-first", "tiny-second"
LONG = 400
REQUESTS = [
    CompletionRequest(f"def f{number}():\n", max_tokens=12, end_id=-1, temperature=0.9 * (number % 2), seed=7)
    for number in range(20)
]
PLAN = replace(
    EASY_PLAN,
    limits="limits.yaml",
    slo_ttft_s=0.2,  # latencies are judged as shares of these: tiny ones take hundreds of pairs to compare
    slo_itl_s=0.02,
    bands=ONE_BAND,  # a busy machine has others now and then, of which too little is ever known
    slow_after_s=30.0,  # no arm takes over from another because the machine is slow
    shadow=Shadow(1.0, 50.0, 2, 16, min_pairs=20, bake_s=1.0),
    steps=(Step(0.3, 20, 1.0),),
    max_pairs=2000,
    down_after_s=1.0,
    drain_s=10.0,
    watch_s=2.0,
    lease_s=5.0,
    tick_s=0.5,
)
ANY, MOST = Limit(5.0, 5.0), Limit(0.9, 0.9)  # tiny engines on a shared machine: speed does not matter here
LAX = replace(
    EASY_LIMITS,
    min_requests=20,
    answers=Limit(0.2, 0.1),
    **dict.fromkeys(("errors", "timeouts"), Limit(0.3, 0.1)),  # type: ignore[arg-type]
    **dict.fromkeys(("goodput", "e2e_tail", "pauses"), MOST),  # type: ignore[arg-type]
    **dict.fromkeys(("acceptance_rate", "acceptance_length", "survival"), MOST),  # type: ignore[arg-type]
    **dict.fromkeys(("ttft", "itl", "memory", "cpu_per_token"), ANY),  # type: ignore[arg-type]
    resources_s=3.0,
    speed_up=dict.fromkeys(EASY_LIMITS.speed_up or (), ANY),
)
SETTLED_S = 1.0  # time for the router to read a table that was just written

Engines = tuple[Path, Path]
Answer = tuple[int, ...]


@pytest.fixture(scope="module")
def engines(tiny_pair: Engines, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Engines]:
    """Return the engines of each recipe."""
    first = shutil.copytree(tiny_pair[0].parent, tmp_path_factory.mktemp("first") / "copy")
    return {
        FIRST: (first / "draft", first / "target"),
        SECOND: build_tiny_pair(tmp_path_factory.mktemp("second"), 3, quantization="none", num_threads=1),
    }


def target_alone(server: Server, request: CompletionRequest) -> Answer:
    with grpc_client(server) as client:
        return client.generate(request, "generate_target").output_ids


@pytest.fixture(scope="module")
def right(
    engines: dict[str, Engines], server: Server, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[CompletionRequest, Answer]]:
    """Return the target's own answers by recipe, from a server of its own."""
    asked = (*REQUESTS, replace(REQUESTS[0], max_tokens=LONG))
    run = render_recipe(tiny_recipe(SECOND), *engines[SECOND], tmp_path_factory.mktemp("alone")).parent
    with ready_server(run) as other:
        said = {
            name: {request: target_alone(answering, request) for request in asked}
            for name, answering in ((FIRST, server), (SECOND, other))
        }
    assert all(said[FIRST][request] != said[SECOND][request] for request in REQUESTS)
    return said


@dataclass
class Rollouts:
    """A run directory whose candidates are rendered from ``engines``.

    Attributes:
        asked_in: Phases in which every arm was asked by its name.
        wrong: Answers that differ from those of the answering arm's target.
    """

    run: Path
    plan: Path
    right: dict[str, dict[CompletionRequest, Answer]]
    asked_in: list[str] = field(default_factory=list)
    wrong: list[object] = field(default_factory=list)

    def recipe_at(self, socket: str) -> str:
        """Return the recipe of the target behind a socket, recognised by its engine."""
        repository = self.run / "model_repository"
        for folder in repository.glob("speculative*"):
            pair = read_pair(self.run, folder.name)
            if socket in (pair.socket, pair.control_socket):
                return pair.name
        raise LookupError(socket)

    def arms(self) -> dict[Arm, str]:
        """Return the recipe of each arm's target."""
        settings = read_table(arms_file(self.run)).settings
        return {arm: self.recipe_at(setting.socket) for arm, setting in settings.items()}

    def roll_out(
        self, server: Server, candidate: str, orders: dict[str, Order] | None = None
    ) -> RolloutRecord:
        """Carry out a rollout: ask each arm in each phase, and give orders when a phase begins."""

        def show(cycle: Cycle) -> None:
            if cycle.transition is None:
                return
            self.ask_all(server, cycle.position.phase)
            if order := (orders or {}).get(cycle.position.phase):
                give_order(state_file(self.run), order)

        return start(self.run, candidate, self.plan, show)

    def ask_all(self, server: Server, moment: str) -> None:
        self.asked_in.append(moment)
        with grpc_client(server) as client:
            for arm, recipe in self.arms().items():
                for request in REQUESTS[:4]:
                    answer = client.stream(replace(request, arm=arm), "router").result()
                    if (answer.arm, answer.output_ids) != (arm, self.right[recipe][request]):
                        self.wrong.append((moment, arm, recipe, answer))


@pytest.fixture
def rollouts(
    engines: dict[str, Engines],
    right: dict[str, dict[CompletionRequest, Answer]],
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Rollouts:
    def render(recipe: str, run: Path, free: int, public_key: None) -> CandidatePair:
        record = second_pair.render_second_pair(tiny_recipe(recipe), *engines[recipe], run)
        return CandidatePair.read(run, record.speculative_model)

    monkeypatch.setattr(triton_world, "render_beside", render)
    plan = tmp_path / "canary.yaml"
    document = asdict(PLAN)
    plan.write_text(yaml.safe_dump({**document, "steps": list(document["steps"])}))
    plan.with_name("limits.yaml").write_text(yaml.safe_dump(asdict(LAX)))
    return Rollouts(make_repository(engines, tmp_path_factory.mktemp("run")), plan, right)


def make_repository(engines: dict[str, Engines], run: Path) -> Path:
    """Render the repository, as ``draftproof serve`` does before it starts a server."""
    return render_recipe(tiny_recipe(FIRST), *engines[FIRST], run).parent


@dataclass(frozen=True)
class Heard:
    """An answer that a client of ``router`` got, and its time."""

    from_s: float
    to_s: float
    request: CompletionRequest
    answer: Generation


@contextmanager
def traffic(server: Server) -> Iterator[list[Heard]]:
    heard: list[Heard] = []
    errors: list[BaseException] = []
    stop = threading.Event()

    def ask() -> None:
        try:
            with grpc_client(server) as client:
                while not stop.is_set():
                    for request in REQUESTS:
                        from_s = time.time()
                        answer = client.stream(request, "router").result()
                        heard.append(Heard(from_s, time.time(), request, answer))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield heard
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert errors == []


def check(
    heard: list[Heard], record: RolloutRecord, right: dict[str, dict[CompletionRequest, Answer]]
) -> None:
    """Check that each answer is that of the target of its arm, as the arms were when it was asked."""
    changed_s = next((each.at_s for each in record.transitions if each.to_phase == "settling"), float("inf"))
    names = {"before": record.recipe_stable, "after": record.recipe_candidate}
    seen: set[tuple[str, str]] = set()
    for each in heard:
        if each.answer.arm == "candidate":
            moments = ["before"]
            may_be = [names["after"]]
        else:
            moments = ["before"] * (each.from_s < changed_s + SETTLED_S)
            moments += ["after"] * (each.to_s > changed_s)
            may_be = [names[moment] for moment in moments]
        assert each.answer.fallback_from == ()
        assert each.answer.output_ids in [right[recipe][each.request] for recipe in may_be], each
        seen |= {(each.answer.arm, moment) for moment in moments}
    assert {("stable", "before"), ("control", "before"), ("candidate", "before")} <= seen
    assert (("stable", "after") in seen) == (record.phase == "promoted")


def models(server: Server) -> dict[str, str]:
    """Return which pairs' models are loaded, by name."""
    with repository_api(server) as api:
        return {
            each.name: each.state
            for each in api.index()
            if each.name.startswith(("speculative", "target")) and each.state != "UNAVAILABLE"
        }


def folders(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "model_repository").iterdir())


def test_a_pair_with_another_target_takes_over_and_the_first_one_comes_back(
    rollouts: Rollouts, engines: dict[str, Engines]
) -> None:
    run, right = rollouts.run, rollouts.right
    at_first = folders(run)
    with ready_server(run) as server:
        loaded_at_first = models(server)
        with traffic(server) as heard:
            record = rollouts.roll_out(server, SECOND)
            time.sleep(2 * SETTLED_S)
        assert record.phase == "promoted", record.transitions
        assert {each.answer for each in record.requests if each.is_replay and not each.failure} == {"equal"}
        check(heard, record, right)
        assert rollouts.arms() == {"stable": SECOND, "control": SECOND}
        check_that_its_process_is_waited_for(server, run, right[SECOND])

    make_repository(engines, run.parent)
    with ready_server(run) as server:
        assert rollouts.arms() == {"stable": SECOND, "control": SECOND}
        rollouts.ask_all(server, "after a restart")
        check_that_it_is_refused_and_unharmed(rollouts, SECOND)

        with traffic(server) as heard:
            record = rollouts.roll_out(server, FIRST, {"step/1": "promote"})
            time.sleep(2 * SETTLED_S)
        assert (record.phase, record.recipe_stable) == ("promoted", SECOND), record.transitions
        check(heard, record, right)
        assert rollouts.arms() == {"stable": FIRST, "control": FIRST}
        assert models(server) == loaded_at_first
    assert folders(run) == at_first
    phases = ("shadow", "step/1", "promoting", "settling", "promoted")
    assert {*phases, "after a restart"} <= set(rollouts.asked_in)
    assert rollouts.wrong == []


def test_rolling_back_a_pair_with_another_target_restores_everything(rollouts: Rollouts) -> None:
    run = rollouts.run
    at_first = folders(run)
    with ready_server(run) as server:
        loaded_at_first = models(server)
        with traffic(server) as heard:
            record = rollouts.roll_out(server, SECOND, {"step/1": "abort"})
            time.sleep(2 * SETTLED_S)
        assert record.phase == "aborted", record.transitions
        check(heard, record, rollouts.right)
        assert rollouts.arms() == {"stable": FIRST, "control": FIRST}
        assert models(server) == loaded_at_first
    assert folders(run) == at_first
    assert rollouts.wrong == []


def check_that_it_is_refused_and_unharmed(rollouts: Rollouts, in_service: str) -> None:
    """Check that a candidate that is the pair in service is refused, by its name and under another one."""
    stable, _ = find_in_service(rollouts.run)
    with pytest.raises(CanaryError, match=f"the candidate is the pair in service; recipe {in_service}"):
        start(rollouts.run, in_service, rollouts.plan, lambda cycle: None)
    address = ServerAddress.of(rollouts.run)
    rollout = replace(begun(), stable_socket=stable.socket, recipe_candidate=in_service, limits=LAX)
    world = TritonWorld(rollouts.run, address, None, rollout)
    assert "it differs from the pair in service" in world.preflight().reason
    assert find_in_service(rollouts.run)[0] == stable


def check_that_its_process_is_waited_for(
    server: Server, run: Path, right: dict[CompletionRequest, Answer]
) -> None:
    """Check that the promoted pair completes interrupted answers itself."""
    stable, _ = find_in_service(run)
    request = replace(REQUESTS[0], max_tokens=LONG)
    with grpc_client(server) as client:
        stream = client.stream(request, "router")
        next(stream)
        for process in processes(server, stable.speculative_model):
            os.kill(process, signal.SIGKILL)
        answer = stream.result()
        assert answer.output_ids == right[request]
        answer = client.stream(REQUESTS[1], "router").result()
        assert answer.output_ids == right[REQUESTS[1]]
