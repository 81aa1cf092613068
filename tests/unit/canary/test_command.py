"""Tests of the rollouts' command line, in a simulated world."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

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
from pipelines.canary.start import start
from pipelines.errors import CanaryError
from pipelines.program import EXIT_INTERRUPTED
from tests.conftest import REPOSITORY_ROOT
from tests.unit.canary.faults import NO_FAULT, Fault, less_accepted
from tests.unit.canary.simulated_world import EASY_LIMITS, PLAN, SimulatedWorld, begun
from tests.unit.canary.test_preflight import run

__all__ = ["run"]


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    path = tmp_path / "plan" / "canary.yaml"
    path.parent.mkdir()
    plan = asdict(replace(PLAN, limits="limits.yaml"))
    path.write_text(yaml.safe_dump({**plan, "steps": list(plan["steps"])}))
    path.with_name("limits.yaml").write_text(yaml.safe_dump(asdict(EASY_LIMITS)))
    return path


class Simulated:
    """Makes worlds whose time passes while the controller waits."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault = NO_FAULT) -> None:
        folder.mkdir(exist_ok=True)
        self.world = SimulatedWorld(folder, fault)
        self.sockets: list[str] = []
        monkeypatch.setattr(starting, "Controller", self._controller)
        monkeypatch.setattr(starting, "_server_of", lambda directory, host, public_key: self)

    def __call__(self, rollout: Rollout, candidate_socket: str) -> World:
        self.sockets.append(candidate_socket)
        return self.world

    def _controller(self, store: Store, rollout: Rollout, world: World) -> Controller:
        controller = Controller(store, rollout, world, self.world.clock)
        look_on = controller.run
        controller.run = lambda show, sleep: look_on(show, self.world.sleep)  # type: ignore[method-assign,assignment,misc]
        return controller


@pytest.fixture
def roll_out(
    run: Path, plan_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., int]:
    """Run ``start`` in that world; return the exit code."""
    monkeypatch.setattr(command, "run_directory", lambda recipe: run)

    def act(fault: Fault = NO_FAULT, candidate: str = "demo-int8") -> int:
        Simulated(tmp_path / "world", monkeypatch, fault)
        return command.main(["start", "--candidate", candidate, "--plan", str(plan_file)])

    return act


def last_line(output: str) -> dict[str, object]:
    document: dict[str, object] = json.loads(output.splitlines()[-1])
    return document


def given(run: Path, phase: str, paused_in: str = "") -> Rollout:
    """Make a rollout that stands in a phase, without a controller."""
    store, rollout = Store(state_file(run)), begun()
    store.begin(rollout)
    progress = replace(store.progress(rollout), position=Position(phase, 0.0, paused_in=paused_in))
    store.advance(rollout, progress)
    return rollout


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert command.main(arguments) == 1
    shown = capsys.readouterr()
    error = str(last_line(shown.out)["error"])
    assert error.count("; ") >= 3, error
    assert "Traceback" not in shown.err
    return error


def test_a_good_candidate_ends_in_zero(
    roll_out: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert roll_out() == 0
    shown = capsys.readouterr()
    assert last_line(shown.out)["verdict"] == "pass"
    assert re.findall(r"^\d\d:\d\d:\d\d  (\S+)", shown.err, re.MULTILINE)[-2:] == ["settling", "promoted"]


def test_a_bad_candidate_ends_in_one_and_status_verdict_and_report_say_why(
    roll_out: Callable[..., int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert roll_out(less_accepted(0.5)) == 1
    assert last_line(capsys.readouterr().out)["phase"] == "rolled_back"
    assert command.main(["status"]) == 0
    assert "\nfail: acceptance_rate" in capsys.readouterr().out
    assert command.main(["verdict"]) == 1
    assert last_line(capsys.readouterr().out)["action"] == "roll_back"
    assert command.main(["report", "--results", str(tmp_path / "results")]) == 0
    [path] = (tmp_path / "results").iterdir()
    text = capsys.readouterr().out
    assert json.loads(path.read_text()) == last_line(text)
    assert re.search(r"^acceptance_rate +fail ", text, re.MULTILINE)


def test_a_candidate_that_is_the_pair_in_service_is_refused_at_once(
    roll_out: Callable[..., int], run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert roll_out(candidate="demo") == 1
    assert "the candidate is the pair in service" in capsys.readouterr().err
    assert not arms_file(run).exists()
    assert Store.existing(state_file(run)).latest() is None


def test_no_rollout_begins_that_could_not_pass(
    roll_out: Callable[..., int], plan_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = plan_file.with_name("limits.yaml")
    limits.write_text(yaml.safe_dump({**asdict(EASY_LIMITS), "min_requests": PLAN.max_pairs + 1}))
    assert roll_out() == 1
    assert "no candidate could ever pass; max_pairs=4000, min_requests=4001" in capsys.readouterr().err


def test_an_invalid_plan_or_limits_are_refused_first(
    roll_out: Callable[..., int], plan_file: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = plan_file.with_name("limits.yaml")
    without = asdict(EASY_LIMITS)
    del without["speed_up"]["medium"]
    limits.write_text(yaml.safe_dump(without))
    assert roll_out() == 1
    assert "a load band has no limit; medium; speed_up names high, low" in capsys.readouterr().err
    limits.unlink()
    (plan_file.parent.parent / "world").rename(plan_file.parent / "world")
    assert roll_out() == 1
    assert "limits.yaml: cannot be read" in capsys.readouterr().err
    assert Store.existing(state_file(run)).latest() is None


def test_a_second_rollout_is_refused_while_one_runs_or_waits(
    roll_out: Callable[..., int], run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given(run, "step/1")
    before = state_file(run).read_bytes()
    assert roll_out(candidate="another") == 1
    assert "another rollout has not ended; c1 of demo-int8" in capsys.readouterr().err
    (tmp_path / "world").rename(tmp_path / "old")
    with sole_controller(state_file(run)):
        assert roll_out() == 1
    assert "a rollout is already running" in capsys.readouterr().err
    assert state_file(run).read_bytes() == before
    assert not arms_file(run).exists()


def test_the_same_command_resumes_with_the_original_plan(
    run: Path, plan_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated = Simulated(tmp_path / "world", monkeypatch)

    def interrupt(cycle: Cycle) -> None:
        if cycle.position.phase == "step/1":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start(run, "demo-int8", plan_file, interrupt)
    plan_file.write_text("{}")
    record = start(run, "demo-int8", plan_file, lambda cycle: None)
    assert record.phase == "promoted"
    assert simulated.sockets == ["", "run/candidate.sock"]
    with pytest.raises(CanaryError, match="a key is missing"):
        start(run, "demo-int8", plan_file, lambda cycle: None)  # a new one


def test_an_interrupt_reports_where_the_requests_go(
    roll_out: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "show_cycle", interrupt)
    assert roll_out() == 130
    assert "the stable pair gets all requests again" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("order", "phase", "paused_in"),
    [
        ("pause", "shadow", ""),
        ("resume", "paused", "step/1"),
        ("promote", "paused", "step/1"),
        ("promote", "step/2", ""),
        ("resume", "paused", "cold_start"),
        ("promote", "paused", "cold_start"),
        ("abort", "paused", "cold_start"),
        ("abort", "loading", ""),
        ("abort", "promoting", ""),
    ],
)
def test_an_order_waits_for_the_controller(
    order: str, phase: str, paused_in: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rollout = given(run, phase, paused_in)
    state = str(state_file(run))
    assert command.main([order, "--state", state]) == 0
    assert "No controller runs" in capsys.readouterr().out
    assert (Store.existing(state_file(run)).next_order(rollout) or (0, ""))[1] == order
    with sole_controller(state_file(run)):
        assert command.main([order, "--state", state]) == 0
    assert capsys.readouterr().out.strip() == f"{order}: the controller carries it out in its next cycle"


@pytest.mark.parametrize(
    ("order", "phase"),
    [
        ("pause", "loading"),
        ("pause", "paused"),
        ("pause", "cold_start"),
        ("pause", "rolled_back"),
        ("resume", "step/1"),
        ("promote", "cold_start"),
        ("promote", "promoting"),
        ("abort", "rolling_back"),
        ("abort", "settling"),
        ("abort", "promoted"),
    ],
)
def test_an_order_that_nobody_could_follow_is_refused(
    order: str, phase: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rollout = given(run, phase, "step/1" if phase == "paused" else "")
    error = refused(capsys, order, "--state", str(state_file(run)))
    assert f"the rollout cannot carry out the order {order}; {state_file(run)}: phase {phase}" in error
    assert Store.existing(state_file(run)).next_order(rollout) is None


@pytest.mark.parametrize("name", ["status", "verdict", "report", "abort"])
def test_without_a_rollout_there_is_nothing_to_say(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "there is no rollout" in refused(capsys, name, "--state", str(tmp_path / "none.sqlite"))
    assert list(tmp_path.iterdir()) == []


def test_the_gates_read_the_same_state(run: Path) -> None:
    given(run, "shadow")
    program = [sys.executable, "-m", "pipelines.canary", "serve", "--port", "0"]
    with subprocess.Popen(
        [*program, "--state", str(state_file(run))], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY_ROOT
    ) as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["http"]
        assert httpx.get(f"{url}/verdict", timeout=120).json()["verdict"] == "inconclusive"
        process.terminate()
    assert process.returncode == EXIT_INTERRUPTED
