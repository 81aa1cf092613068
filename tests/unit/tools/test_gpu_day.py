"""Tests of the GPU day's steps on toy commands: time limits, independence, results of a broken run."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pipelines.deploy.ports import Ports
from pipelines.process import ProcessIdentity
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


def test_the_steps_are_in_an_order_that_works() -> None:
    seen: set[str] = set()
    steps = day_steps("demo", Ports(8000, 8001, 8002))
    for step in steps:
        assert set(step.needs) <= seen, step
        seen.add(step.name)
    assert stop_step("demo").name not in seen
    probes = {step.command[3] for step in steps if step.command[2] == "tests.gpu.probe"}
    assert probes == set(PROBES) - {"traps"}  # which is for servers without engines
