"""Tests of a controller that is killed at any point.

A forked process gets SIGKILL once before each single write, and a process of its own from outside.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.canary.controller.control import Cycle
from pipelines.canary.controller.orders import sole_controller
from pipelines.canary.controller.phases import ENDED
from pipelines.canary.controller.state import Store
from pipelines.canary.judge.limits import Limit
from pipelines.errors import CanaryError
from tests.conftest import REPOSITORY_ROOT
from tests.unit.canary.faults import NO_FAULT, Fault, less_accepted
from tests.unit.canary.simulated_world import (
    EASY_LIMITS,
    PLAN,
    SETTLED,
    STABLE,
    SimulatedWorld,
    begin,
    controller_of,
    give,
    roll_out,
)

_ALONE = "import sys; from tests.unit.canary.test_killed import run_alone; run_alone(*sys.argv[1:])"
_BEFORE_THE_DECISION = ("preflight", "loading", "shadow", "step/1")
FAULTS = {"promoted": NO_FAULT, "rolled_back": less_accepted(0.5)}
PHASES = {
    "promoted": (*_BEFORE_THE_DECISION, "promoting", "settling", "retiring"),
    "rolled_back": (*_BEFORE_THE_DECISION, "rolling_back"),
}
SHORT = replace(
    PLAN,
    shadow=replace(PLAN.shadow, min_pairs=20, bake_s=2.0),
    steps=(replace(PLAN.steps[1], bake_s=2.0),),
    watch_s=2.0,
)
LAX = Limit(0.9, 0.9)
LAX_LIMITS = replace(
    EASY_LIMITS,
    min_requests=20,
    **dict.fromkeys(("goodput", "ttft", "itl", "e2e_tail"), LAX),  # type: ignore[arg-type]
    **dict.fromkeys(("answers", "errors", "timeouts"), Limit(0.5, 0.1)),  # type: ignore[arg-type]
    acceptance_rate=Limit(0.5, 0.2),
)


def phase_of(folder: Path) -> str:
    return Store.existing(folder / "canary.sqlite").record().phase


def check_end(world: SimulatedWorld, last: str) -> None:
    """Let time pass without a controller, start a new one from the files alone, and check how it ends.

    Nothing may be missing or duplicated, and the server must be as the last phase requires.
    """
    left_in, dead_at_s = phase_of(world.folder), world.clock()
    world.sleep(1.2 * PLAN.lease_s)
    if left_in not in ("settling", "retiring", "promoted"):  # then the candidate is proven
        assert world.candidate_requests_since(dead_at_s + PLAN.lease_s) == 0
    back_at_s = world.clock()
    with sole_controller(world.folder / "canary.sqlite"):
        record = roll_out(world)
    if left_in in ("rolling_back", "rolled_back"):
        assert world.candidate_requests_since(back_at_s) == 0
    steps = [(each.from_phase, each.to_phase) for each in record.transitions]
    assert record.phase == steps[-1][1] == last
    assert all(before[1] == after[0] for before, after in itertools.pairwise(steps))
    store = Store(world.folder / "canary.sqlite")
    rollout = store.latest()
    assert rollout is not None
    seen = Counter((each.request_id, each.arm, each.is_replay) for each in store.requests(rollout))
    assert set(seen.values()) <= {1}
    assert world.table.generation == store.progress(rollout).generation == len(steps)
    state, arms = world.state, world.table.sockets
    if last == "promoted":
        assert state["is_settled"] and not state["is_loaded"]
        assert arms == {"stable": SETTLED}
    else:
        assert not state["is_loaded"]
        assert arms == {"stable": STABLE}


def forked(act: Callable[[], None]) -> int:
    """Return how a forked copy of this process ended: 0, or minus the signal."""
    with warnings.catch_warnings():
        # warnings about threads, which do not matter to the copy
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if not pid:
        code = 1
        try:
            act()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def die_before(number: int) -> None:
    """Kill this process before its write with that number; consecutive writes of one kind count once."""
    count = itertools.count()
    latest = ""

    def point(kind: str) -> None:
        nonlocal latest
        if kind != latest and next(count) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        latest = kind

    def watch(owner: Any, name: str) -> None:
        act = getattr(owner, name)

        def done(self: Any, *values: Any) -> Any:
            point(values[0] if owner is Store else f"before {name}")
            result = act(self, *values)
            if owner is not Store:
                point(f"after {name}")
            return result

        setattr(owner, name, done)

    watch(Store, "_write")
    for name in ("write", "load", "unload", "settle", "sleep"):
        watch(SimulatedWorld, name)


def cycles(folder: Path, fault: Fault) -> Iterator[tuple[str, Path]]:
    """Return each phase with the files before its first cycle, and with those before the one that ends it."""
    (folder / "whole").mkdir()
    world = SimulatedWorld(folder / "whole", fault)
    begin(world.folder, SHORT, LAX_LIMITS)
    store = Store(world.folder / "canary.sqlite")
    rollout = store.latest()
    assert rollout is not None
    controller = controller_of(store, rollout, world)
    is_first = True
    for number in itertools.count():
        before = Path(shutil.copytree(world.folder, folder / f"cycle-{number}"))
        phase = store.record().phase
        cycle = controller.run_cycle()
        if is_first or cycle.transition is not None:
            yield phase, before
        is_first = cycle.transition is not None
        if cycle.position.phase in ENDED:
            return
        if cycle.transition is None:
            world.sleep(SHORT.tick_s)


def run_one_cycle(folder: Path, fault: Fault) -> None:
    """Run a resumed controller's first cycle, and the time until its next one."""

    def stop(cycle: Cycle) -> None:
        if cycle.transition is None or cycle.position.phase in ENDED:
            os._exit(0)

    roll_out(SimulatedWorld(folder, fault), stop)


def left_behind(folder: Path) -> tuple[str, ...]:
    """Return what a controller can resume from; equal if it would do the same."""
    connection = Store.existing(folder / "canary.sqlite")._connection
    return (*connection.iterdump(), *((folder / name).read_text() for name in ("arms.json", "world.json")))


@pytest.mark.parametrize(
    ("last", "phase"),
    [
        # `make test-all` kills a controller once in each of the other phases.
        pytest.param(last, phase, marks=[pytest.mark.long] * (phase not in ("promoting", "rolling_back")))
        for last, phases in PHASES.items()
        for phase in phases
    ],
)
def test_a_controller_killed_before_any_write_resumes(last: str, phase: str, tmp_path: Path) -> None:
    fault = FAULTS[last]
    num_killed = 0
    tried: set[tuple[str, ...]] = set()
    found = list(cycles(tmp_path, fault))
    assert {each for each, _ in found} == set(PHASES[last]), "each phase has a test"
    for before in (before for each, before in found if each == phase):
        for number in itertools.count():
            folder = Path(shutil.copytree(before, before.with_name(f"{before.name}-{number}")))

            def act(folder: Path = folder, number: int = number) -> None:
                die_before(number)
                run_one_cycle(folder, fault)

            code = forked(act)
            if code != -signal.SIGKILL:
                assert code == 0
                break
            num_killed += 1
            if (left := left_behind(folder)) not in tried:
                tried.add(left)
                check_end(SimulatedWorld(folder, fault), last)
    assert num_killed >= 10
    assert len(tried) >= 3


def run_alone(folder: str, last: str, pause_in: str) -> None:
    """Run a rollout in a process of its own, which prints each phase before it acts on it."""
    state = Path(folder) / "canary.sqlite"

    def show(cycle: Cycle) -> None:
        if cycle.transition is not None and cycle.position.phase == pause_in:
            give(Path(folder), "pause")
        print(cycle.position.phase, flush=True)
        time.sleep(0.01)

    with sole_controller(state):
        begin(Path(folder))
        print("preflight", flush=True)
        roll_out(SimulatedWorld(Path(folder), FAULTS[last]), show)


@pytest.mark.parametrize(("phase", "last"), [("paused", "promoted"), ("rolling_back", "rolled_back")])
def test_a_controller_killed_in_a_phase_is_resumed_by_another(phase: str, last: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _ALONE, str(tmp_path), last, "step/1" if phase == "paused" else ""]
    with subprocess.Popen(command, cwd=REPOSITORY_ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if line.strip() == phase)
        with (
            pytest.raises(CanaryError, match="is already running"),
            sole_controller(tmp_path / "canary.sqlite"),
        ):
            raise AssertionError
        process.kill()
    assert process.returncode == -signal.SIGKILL
    if phase == "paused":
        assert phase_of(tmp_path) == "paused"
        give(tmp_path, "resume")
    check_end(SimulatedWorld(tmp_path, FAULTS[last]), last)
