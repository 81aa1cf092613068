"""Tests of the rollouts' command line, in a simulated world."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import yaml

from pipelines.canary import __main__ as command
from pipelines.canary import start as starting
from pipelines.canary.controller.control import Controller, Cycle
from pipelines.canary.controller.orders import sole_controller
from pipelines.canary.controller.phases import Position
from pipelines.canary.controller.rollout import Rollout
from pipelines.canary.controller.state import Store
from pipelines.canary.controller.world import World
from pipelines.canary.run_files import arms_file, state_file
from pipelines.deploy.ports import Ports
from pipelines.program import EXIT_INTERRUPTED
from tests.conftest import REPOSITORY_ROOT
from tests.unit.canary.faults import NO_FAULT, Fault, less_accepted
from tests.unit.canary.simulated_world import EASY_LIMITS, PLAN, SimulatedWorld, begun


class Commands:
    """Runs commands in a simulated world whose time passes while the controller waits.

    Attributes:
        plan: File of the plan, beside its ``limits.yaml``.
    """

    def __init__(self, run: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.fault: Fault = NO_FAULT
        self.server = SimpleNamespace(ports=Ports())
        self.plan = folder / "canary.yaml"
        self.state = state_file(run)
        self.shown = ""
        self._world = folder / "world"
        self._world.mkdir()
        self._capsys = capsys
        plan = asdict(replace(PLAN, limits="limits.yaml"))
        self.plan.write_text(yaml.safe_dump({**plan, "steps": list(plan["steps"])}))
        self.limit()

    def limit(self, **changes: Any) -> None:
        limits = {**asdict(EASY_LIMITS), **changes}
        self.plan.with_name("limits.yaml").write_text(yaml.safe_dump(limits))

    def world(self, directory: Path, rollout: Rollout, key: object) -> World:
        return SimulatedWorld(self._world, self.fault)

    def controller(self, store: Store, rollout: Rollout, world: SimulatedWorld) -> Controller:
        controller = Controller(store, rollout, world, world.clock)
        run = controller.run
        controller.run = lambda show, sleep: run(show, world.sleep)  # type: ignore[method-assign,assignment,misc]
        return controller

    def __call__(self, *arguments: str) -> int:
        """Run a command on the rollout of the state file; what it shows is in ``shown``."""
        code = command.main([*arguments, "--state", str(self.state)])
        return self._keep(code)

    def start(self, candidate: str = "demo-int8") -> int:
        return self._keep(command.main(["start", "--candidate", candidate, "--plan", str(self.plan)]))

    @property
    def document(self) -> dict[str, Any]:
        """Return the last line of what was shown."""
        document: dict[str, Any] = json.loads(self.shown.splitlines()[-1])
        return document

    def stand_in(self, phase: str, paused_in: str = "") -> Rollout:
        """Make a rollout that stands in a phase, without a controller."""
        store, rollout = Store(self.state), begun()
        store.begin(rollout)
        progress = replace(store.progress(rollout), position=Position(phase, 0.0, paused_in=paused_in))
        store.advance(rollout, progress)
        return rollout

    def next_order(self, rollout: Rollout) -> str:
        return (Store.existing(self.state).next_order(rollout) or (0, ""))[1]

    def _keep(self, code: int) -> int:
        told = self._capsys.readouterr()
        self.shown, self.errors = told.out, told.err
        assert "Traceback" not in told.err
        return code


@pytest.fixture
def commands(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Commands:
    commands = Commands(run, tmp_path, capsys)
    monkeypatch.setattr(command, "run_directory", lambda recipe: run)
    monkeypatch.setattr(starting, "find_server", lambda directory: commands.server)
    monkeypatch.setattr(starting, "OwnServers", commands.world)
    monkeypatch.setattr(starting, "Controller", commands.controller)
    return commands


def test_a_good_candidate_ends_in_zero(commands: Commands) -> None:
    assert commands.start() == 0
    assert commands.document["verdict"] == "pass"
    entered = re.findall(r"^\d\d:\d\d:\d\d  (\S+)", commands.errors, re.MULTILINE)
    assert entered[-2:] == ["retiring", "promoted"]


def test_a_bad_candidate_ends_in_one_and_status_verdict_and_report_say_why(
    commands: Commands, tmp_path: Path
) -> None:
    commands.fault = less_accepted(0.5)
    assert commands.start() == 1
    assert commands.document["phase"] == "rolled_back"
    assert commands("status") == 0
    assert "\nfail: acceptance_rate" in commands.shown
    assert commands("verdict") == 1
    assert commands.document["action"] == "roll_back"
    assert commands("report", "--results", str(tmp_path / "results")) == 0
    [path] = (tmp_path / "results").iterdir()
    assert json.loads(path.read_text()) == commands.document
    assert re.search(r"^acceptance_rate +fail ", commands.shown, re.MULTILINE)


@pytest.mark.parametrize(
    ("candidate", "limits", "said"),
    [
        ("demo", {}, "the candidate, recipe demo, is the pair in service"),
        ("new", {"min_requests": 4001}, "no candidate could ever pass: max_pairs=4000, min_requests=4001"),
        ("new", {"alpha": 7}, "limits.yaml: .*alpha=7"),
    ],
)
def test_a_rollout_that_could_not_pass_does_not_begin(
    candidate: str, limits: dict[str, Any], said: str, commands: Commands, run: Path
) -> None:
    commands.limit(**limits)
    assert commands.start(candidate) == 1
    assert re.search(said, commands.errors)
    assert not arms_file(run).exists()
    assert Store.existing(commands.state).latest() is None


def test_a_server_without_openai_s_api_has_nothing_to_judge(commands: Commands) -> None:
    commands.server.ports = Ports(openai=0)
    assert commands.start() == 1
    assert "does not serve OpenAI's API" in commands.errors


def test_a_second_rollout_is_refused_while_one_runs_or_waits(commands: Commands, run: Path) -> None:
    commands.stand_in("step/1")
    before = commands.state.read_bytes()
    assert commands.start("another") == 1
    assert "another rollout has not ended: c1 of demo-int8" in commands.errors
    with sole_controller(commands.state):
        assert commands.start() == 1
    assert "a rollout is already running" in commands.errors
    assert commands.state.read_bytes() == before
    assert not arms_file(run).exists()


def test_the_same_command_resumes_with_the_original_plan(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(cycle: Cycle) -> None:
        if cycle.position.phase == "step/1":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(command, "show_cycle", interrupt)
        assert commands.start() == EXIT_INTERRUPTED
    assert "the stable pair gets all requests again" in commands.errors
    commands.plan.write_text("{}")
    assert commands.start() == 0
    assert commands.start() == 1  # a new one
    assert "is missing" in commands.errors


@pytest.mark.parametrize(
    ("order", "phase", "paused_in"),
    [
        ("pause", "shadow", ""),
        ("promote", "step/2", ""),
        ("abort", "loading", ""),
        ("abort", "promoting", ""),
        *((order, "paused", "step/1") for order in ("resume", "promote", "abort")),
    ],
)
def test_orders_wait_for_the_controller(order: str, phase: str, paused_in: str, commands: Commands) -> None:
    rollout = commands.stand_in(phase, paused_in)
    assert commands(order) == 0
    assert "No controller runs" in commands.shown
    assert commands.next_order(rollout) == order
    with sole_controller(commands.state):
        assert commands(order) == 0
    assert commands.shown.strip() == f"{order}: the controller carries it out in its next cycle"


@pytest.mark.parametrize(
    ("order", "phases"),
    [
        ("pause", ("loading", "paused", "rolled_back")),
        ("resume", ("step/1",)),
        ("promote", ("loading", "promoting")),
        ("abort", ("rolling_back", "settling", "retiring", "promoted")),
    ],
)
def test_an_order_that_nobody_could_follow_is_refused(
    order: str, phases: tuple[str, ...], commands: Commands
) -> None:
    for phase in phases:
        commands.state.unlink(missing_ok=True)
        rollout = commands.stand_in(phase, "step/1" if phase == "paused" else "")
        assert commands(order) == 1
        error = commands.document["error"]
        assert f"cannot carry out the order {order}, for " in error
        assert f"{commands.state} is in phase {phase}; see " in error
        assert commands.next_order(rollout) == ""


@pytest.mark.parametrize("name", ["status", "verdict", "report", "abort"])
def test_without_a_rollout_there_is_nothing_to_say(name: str, commands: Commands) -> None:
    assert commands(name) == 1
    assert "there is no rollout" in commands.document["error"]
    assert not commands.state.exists()


def test_the_gates_read_the_same_state(commands: Commands) -> None:
    commands.stand_in("shadow")
    serve = ["serve", "--port", "0", "--state", str(commands.state)]
    program = [sys.executable, "-m", "pipelines.canary", *serve]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY_ROOT) as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["http"]
        assert httpx.get(f"{url}/verdict", timeout=120).json()["verdict"] == "inconclusive"
        process.terminate()
    assert process.returncode == EXIT_INTERRUPTED
