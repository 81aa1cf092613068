"""Tests of a pair with another target on one machine: it takes over, goes back, and fails.

The two targets answer every request differently, so an answer shows which of them gave it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import httpx
import pytest
import yaml

from build.repository import render_recipe
from pipelines.canary.controller import own_servers
from pipelines.canary.controller.control import Cycle
from pipelines.canary.controller.orders import give_order
from pipelines.canary.controller.own_servers import served_pair
from pipelines.canary.controller.phases import Order
from pipelines.canary.controller.plan import Shadow, Step
from pipelines.canary.judge.limits import Limit
from pipelines.canary.report.record import RolloutRecord
from pipelines.canary.run_files import state_file
from pipelines.canary.start import start
from pipelines.deploy.pair_source import PairSource
from pipelines.deploy.server import Server, beside
from pipelines.errors import CanaryError
from tests.drills.openai_clients import Answer, Crowd
from tests.drills.setting import ONE_BAND, questions_of
from tests.integration.conftest import tiny_recipe
from tests.support.ready_server import ready_server
from tests.support.tiny_engines import build_tiny_pair
from tests.unit.canary.simulated_world import EASY_LIMITS
from tests.unit.canary.simulated_world import PLAN as EASY_PLAN

# `make drills` promotes and rolls back pairs with the same target.
pytestmark = [pytest.mark.triton, pytest.mark.long]

QUESTIONS = questions_of((f"def f{number}():\n" for number in range(20)), max_tokens=12)
FIRST, SECOND = "tiny-first", "tiny-second"
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
    **dict.fromkeys(("goodput", "e2e_tail", "pauses", "acceptance_rate"), MOST),  # type: ignore[arg-type]
    **dict.fromkeys(("ttft", "itl", "memory", "cpu_per_token"), ANY),  # type: ignore[arg-type]
    resources_s=3.0,
)
Engines = tuple[Path, Path]


@pytest.fixture(scope="module")
def engines(tiny_pair: Engines, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Engines]:
    """Return the engines of each recipe."""
    first = shutil.copytree(tiny_pair[0].parent, tmp_path_factory.mktemp("first") / "copy")
    return {
        FIRST: (first / "draft", first / "target"),
        SECOND: build_tiny_pair(tmp_path_factory.mktemp("second"), 3, quantization="none", num_threads=1),
    }


class Listener(Crowd):
    """Clients that keep every answer, by what they asked."""

    def __init__(self, url: str) -> None:
        super().__init__(url, QUESTIONS, lambda name: {})
        self.heard: list[tuple[float, int, Answer]] = []

    def answers(self) -> list[Answer]:
        """Return the target's own answer to each question."""
        return self._expected

    def _check(self, ask, client, question, expected, asked) -> None:  # type: ignore[no-untyped-def]
        answer = ask(client, question, asked.arrivals_s, [])
        self.heard.append((time.time(), self._expected.index(expected), answer))


@contextmanager
def traffic(server: Server) -> Iterator[Listener]:
    listener = Listener(server.openai_url)
    listener.start(("one", "two", "three"))
    try:
        yield listener
    finally:
        lost = [each.error for each in listener.stop() if each.error]
    assert lost == []


@dataclass
class Rollouts:
    """A run directory whose candidates are rendered from ``engines``."""

    run: Path
    plan: Path

    def roll_out(self, candidate: str, orders: dict[str, Order] | None = None) -> RolloutRecord:
        """Carry out a rollout, and give orders when a phase begins."""

        def show(cycle: Cycle) -> None:
            if cycle.transition is not None and (order := (orders or {}).get(cycle.position.phase)):
                give_order(state_file(self.run), order)

        return start(self.run, candidate, self.plan, show)


@pytest.fixture
def rollouts(
    engines: dict[str, Engines],
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Rollouts:
    def render(source: PairSource, run: Path, options: Sequence[str] = ()) -> None:
        recipe, name = tiny_recipe(source.name), source.served_model_name
        render_recipe(recipe, *engines[source.name], run.parent, name=run.name, served_model_name=name)

    monkeypatch.setattr(own_servers, "render", render)
    plan = tmp_path / "canary.yaml"
    document = asdict(PLAN)
    plan.write_text(yaml.safe_dump({**document, "steps": list(document["steps"])}))
    plan.with_name("limits.yaml").write_text(yaml.safe_dump(asdict(LAX)))
    run = tmp_path_factory.mktemp("run")
    return Rollouts(render_recipe(tiny_recipe(FIRST), *engines[FIRST], run).parent, plan)


@pytest.fixture(scope="module")
def right(engines: dict[str, Engines], tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Answer]]:
    """Return the target's own answers by recipe, each from a server of its own."""

    def of(recipe: str) -> list[Answer]:
        run = render_recipe(tiny_recipe(recipe), *engines[recipe], tmp_path_factory.mktemp("alone")).parent
        with ready_server(run, with_openai=True) as server:
            return Listener(server.openai_url).answers()

    found = {recipe: of(recipe) for recipe in (FIRST, SECOND)}
    assert all(one != other for one, other in zip(*found.values(), strict=True))
    return found


def check(listener: Listener, record: RolloutRecord, right: dict[str, list[Answer]]) -> None:
    """Check that each answer is one of a target that was in service, and that both were heard."""
    old, new = right[record.rollout.recipe_stable], right[record.rollout.recipe_candidate]
    phases = {each.to_phase: each.at_s for each in record.transitions}
    by_client = {"old": 0, "new": 0}
    for at_s, number, answer in listener.heard:
        assert answer in (old[number], new[number])
        name = "old" if answer == old[number] else "new"
        by_client[name] += 1
        assert name == "old" or at_s > phases["step/1"], "a client was answered before anything was shown"
    if record.phase == "promoted":
        assert [number for _, number, answer in listener.heard[-6:] if answer != new[number]] == []
    assert by_client["old"] and by_client["new"]


def model_of(server: Server) -> str:
    """Return the name under which clients ask."""
    name: str = httpx.get(f"{server.openai_url}/v1/models", trust_env=False).json()["data"][0]["id"]
    return name


def test_a_pair_with_another_target_takes_over_and_the_first_one_comes_back(
    rollouts: Rollouts, right: dict[str, list[Answer]]
) -> None:
    run = rollouts.run
    with ready_server(run, with_openai=True) as server:
        with traffic(server) as listener:
            record = rollouts.roll_out(SECOND)
            time.sleep(2)
        assert record.phase == "promoted", record.transitions
        assert {each.answer for each in record.requests if each.is_replay and not each.failure} == {"equal"}
        check(listener, record, right)
        assert (served_pair(run).name, model_of(server)) == (SECOND, FIRST)
        with pytest.raises(CanaryError, match=f"the candidate, recipe {SECOND}, is the pair in service"):
            rollouts.roll_out(SECOND)
        with traffic(server) as listener:
            record = rollouts.roll_out(FIRST, {"step/1": "promote"})
            time.sleep(2)
        assert (record.phase, record.rollout.recipe_stable) == ("promoted", SECOND), record.transitions
        assert (served_pair(run).name, model_of(server)) == (FIRST, FIRST)
    assert not beside(run).exists()


def test_rolling_back_a_pair_with_another_target_restores_everything(
    rollouts: Rollouts, right: dict[str, list[Answer]]
) -> None:
    run = rollouts.run
    with ready_server(run, with_openai=True) as server:
        process = server.process
        with traffic(server) as listener:
            record = rollouts.roll_out(SECOND, {"step/1": "abort"})
            time.sleep(2)
        assert record.phase == "aborted", record.transitions
        assert served_pair(run).name == FIRST
        assert Server.running(beside(run)) is None and process.is_alive
        heard = listener.heard[-6:]
        assert [number for _, number, answer in heard if answer != right[FIRST][number]] == []
    assert not beside(run).exists()
