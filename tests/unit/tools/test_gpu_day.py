"""Tests of the GPU day's steps on toy commands: time limits, independence, results of a broken run."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.deploy.ports import Ports
from pipelines.process import ProcessIdentity
from tests.conftest import REPOSITORY_ROOT
from tests.gpu import __main__ as day
from tests.gpu.__main__ import FAILED, INCONCLUSIVE, NOT_RUN, PASSED, run_step, run_steps
from tests.gpu.probe import PROBES
from tests.gpu.steps import Step, day_steps, stop_step


def toy(name: str, code: str, *needs: str, limit_s: float = 60.0) -> Step:
    return Step(name, "a toy", (sys.executable, "-c", code), limit_s, needs)


def test_a_failing_step_stops_only_those_that_need_it(tmp_path: Path) -> None:
    steps = (
        toy("first", "raise SystemExit(1)"),
        toy("second", "print('{}')", "first"),
        toy("third", "print('{}')", "second"),
        toy("apart", 'print(\'{"verdict": "pass"}\')'),
        toy("unclear", "raise SystemExit(3)"),
        toy("after", "pass", "unclear", "apart"),
    )
    outcomes = {outcome["name"]: outcome for outcome in run_steps(steps, tmp_path)}
    states = [outcome["state"] for outcome in outcomes.values()]
    assert states == [FAILED, NOT_RUN, NOT_RUN, PASSED, INCONCLUSIVE, PASSED]
    assert outcomes["second"]["reason"] == "needs first"
    assert outcomes["apart"]["finding"] == {"verdict": "pass"} and not outcomes["apart"]["last_lines"]


def test_a_step_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time; "
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
        "print(child.pid, flush=True); time.sleep(600)"
    )
    began_s = time.monotonic()
    outcome = run_step(toy("hangs", code, limit_s=2.0), tmp_path)
    assert (outcome["state"], outcome["reason"]) == (FAILED, "killed after 2 s")
    assert time.monotonic() - began_s < 30
    deadline_s = time.monotonic() + 120
    while ProcessIdentity.of(int(outcome["last_lines"][0])) is not None:
        assert time.monotonic() < deadline_s, "the child runs on"
        time.sleep(0.05)


Run = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The day's program on toy steps: exit code and result file."""
    monkeypatch.setattr(day, "run_directory", lambda recipe: tmp_path / "run" / recipe)

    def call(*steps: Step, stop: str = "pass") -> tuple[int, dict[str, Any]]:
        monkeypatch.setattr(day, "day_steps", lambda recipe, ports: steps)
        monkeypatch.setattr(day, "stop_step", lambda recipe: toy("stop", stop))
        code = day.main(["--recipe", "toy", "--output", str(tmp_path / "result.json")])
        return code, json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))

    return call


def test_the_result_says_what_happened_and_where(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    code, document = run(toy("one", "print('{\"a\": 1}')"), toy("two", "raise SystemExit('why')"))
    assert (code, document["verdict"]) == (1, "fail")
    one, two, _ = document["steps"]
    states = {"one": "passed", "two": "failed", "stop": "passed"}
    assert one["finding"] == {"a": 1} and two["last_lines"] == ["why"] and two["reason"] == "exit code 1"
    assert document["conditions"]["git_sha"] and document["conditions"]["gpus"] == []
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["states"] == states


INTERRUPTED_DAY = """
import sys
from pathlib import Path

from tests.gpu import __main__ as day
from tests.unit.tools.test_gpu_day import toy

folder = Path(sys.argv[1])
steps = (
    toy("one", "pass"),
    toy("two", f"open({str(folder / 'began')!r}, 'w').close(); import time; time.sleep(60)"),
    toy("three", "pass"),
)
day.run_directory = lambda recipe: folder / "run" / recipe
day.day_steps = lambda recipe, ports: steps
day.stop_step = lambda recipe: toy("stop", f"open({str(folder / 'stopped')!r}, 'w')")
sys.exit(day.main(["--recipe", "toy", "--output", str(folder / "result.json")]))
"""


def test_an_interrupt_stops_the_server_and_keeps_what_was_found(tmp_path: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED_DAY, str(tmp_path)]
    with subprocess.Popen(command, cwd=REPOSITORY_ROOT) as process:
        deadline_s = time.monotonic() + 120
        while not (tmp_path / "began").exists():
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        process.terminate()
        assert process.wait(120) == 130
    document = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert (tmp_path / "stopped").exists()
    states = [each["state"] for each in document["steps"]]
    assert states == ["passed", "not run", "not run", "passed"]
    assert document["verdict"] == "fail"


def test_the_steps_are_in_an_order_that_works() -> None:
    seen: set[str] = set()
    steps = day_steps("demo", Ports(8000, 8001, 8002))
    for step in steps:
        assert set(step.needs) <= seen, step
        seen.add(step.name)
    assert stop_step("demo").name not in seen
    probes = {step.command[3] for step in steps if step.command[2] == "tests.gpu.probe"}
    assert probes == set(PROBES) - {"traps"}  # which is for servers without engines
