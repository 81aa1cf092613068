"""Tests of a controller that is killed at any point.

A forked process gets SIGKILL once before each single write. A process of its own is killed from outside once
in each phase.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
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
from pipelines.canary.report.record import RolloutRecord
from pipelines.errors import CanaryError
from tests.conftest import REPOSITORY_ROOT
from tests.unit.canary.faults import NO_FAULT, Fault, less_accepted
from tests.unit.canary.rollout_process import FAULTS
from tests.unit.canary.simulated_world import (
    CANDIDATE,
    CANDIDATE_CONTROL,
    CONTROL,
    EASY_LIMITS,
    PLAN,
    STABLE,
    SimulatedWorld,
    begun,
    controller_of,
)

BAD = less_accepted(0.5)
SHORT = replace(
    PLAN,
    shadow=replace(PLAN.shadow, min_pairs=20, bake_s=2.0),
    steps=(replace(PLAN.steps[1], bake_s=2.0),),
    watch_s=2.0,
)
_BEFORE_THE_DECISION = ("preflight", "loading", "cold_start", "shadow", "step/1")
ROLLOUTS = {  # how a rollout ends: its fault and its phases
    "promoted": (NO_FAULT, (*_BEFORE_THE_DECISION, "promoting", "settling")),
    "rolled_back": (BAD, (*_BEFORE_THE_DECISION, "rolling_back")),
}
LAX = Limit(0.9, 0.9)
LAX_LIMITS = replace(
    EASY_LIMITS,
    min_requests=20,
    survival=LAX,
    goodput=LAX,
    ttft=LAX,
    itl=LAX,
    e2e_tail=LAX,
    answers=Limit(0.5, 0.1),
    errors=Limit(0.5, 0.1),
    timeouts=Limit(0.5, 0.1),
    acceptance_rate=Limit(0.5, 0.2),
    acceptance_length=LAX,
    speed_up=dict.fromkeys(EASY_LIMITS.speed_up, LAX),
)


def go_on(world: SimulatedWorld) -> RolloutRecord:
    """Start a new controller from the files alone."""
    store = Store.existing(world.folder / "canary.sqlite")
    rollout = store.latest()
    assert rollout is not None
    with sole_controller(world.folder / "canary.sqlite"):
        controller_of(store, rollout, world).run(lambda cycle: None, world.sleep)
    return store.record()


def stay_dead(world: SimulatedWorld, phase: str) -> None:
    """Let time pass without a controller until the lease has expired."""
    dead_at_s = world.clock()
    world.sleep(1.2 * PLAN.lease_s)
    if phase in ("settling", "promoted"):
        return  # the candidate is the stable pair by now
    assert world.candidate_requests_since(dead_at_s + PLAN.lease_s) == 0


def check_end(world: SimulatedWorld, record: RolloutRecord, last: str) -> None:
    """Check that nothing is missing or duplicated, and that the server is as the last phase requires."""
    steps = [(each.from_phase, each.to_phase) for each in record.transitions]
    assert record.phase == steps[-1][1] == last
    assert all(before[1] == after[0] for before, after in itertools.pairwise(steps))
    store = Store(world.folder / "canary.sqlite")
    rollout = store.latest()
    assert rollout is not None
    seen = Counter((each.request_id, each.arm, each.is_replay) for each in store.requests(rollout))
    assert set(seen.values()) <= {1}
    generation = store.progress(rollout).generation
    assert world.table.generation == generation == len(steps)
    assert world.table.control is not None
    if last == "promoted":
        assert world.state["is_kept"] and world.state["is_settled"]
        assert (world.table.stable.socket, world.table.control.socket) == (CANDIDATE, CANDIDATE_CONTROL)
    else:
        assert not world.state["is_loaded"] and not world.state["is_kept"]
        assert (world.table.stable.socket, world.table.control.socket) == (STABLE, CONTROL)
        assert world.table.weights(world.clock())["stable"] == 1


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


def dying_before(number: int, patch: pytest.MonkeyPatch) -> None:
    """Kill this process before its write with that number; consecutive writes of one kind count once."""
    count = itertools.count()
    latest = ""

    def point(kind: str) -> None:
        nonlocal latest
        if kind != latest and next(count) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        latest = kind

    write = Store._write

    def written(self: Store, statement: str, *values: Any) -> None:
        point(statement)
        write(self, statement, *values)

    patch.setattr(Store, "_write", written)
    for name in ("write", "load", "unload", "keep", "settle", "probe", "sleep"):
        act = getattr(SimulatedWorld, name)

        def done(self: SimulatedWorld, *values: Any, act: Any = act, name: str = name) -> Any:
            point(f"before {name}")
            result = act(self, *values)
            point(f"after {name}")
            return result

        patch.setattr(SimulatedWorld, name, done)


def looks(folder: Path, fault: Fault) -> Iterator[tuple[str, Path]]:
    """Return each phase with the files before its first look, and with those before the one that ends it."""
    world = SimulatedWorld(folder / "whole", fault)
    store, rollout = Store(world.folder / "canary.sqlite"), begun(SHORT, LAX_LIMITS)
    store.begin(rollout)
    controller = controller_of(store, rollout, world)
    is_first = True
    for number in itertools.count():
        before = Path(shutil.copytree(world.folder, folder / f"look-{number}"))
        phase = store.record().phase
        cycle = controller.run_cycle()
        if is_first or cycle.transition is not None:
            yield phase, before
        is_first = cycle.transition is not None
        if cycle.position.phase in ENDED:
            return
        if cycle.transition is None:
            world.sleep(SHORT.tick_s)


def look_once(folder: Path, fault: Fault) -> None:
    """Run a resumed controller's first look, and return the time until its next one."""
    world = SimulatedWorld(folder, fault)
    store = Store.existing(folder / "canary.sqlite")
    rollout = store.latest()
    assert rollout is not None

    def stop(cycle: Cycle) -> None:
        if cycle.transition is None or cycle.position.phase in ENDED:
            os._exit(0)

    controller_of(store, rollout, world).run(stop, world.sleep)


@pytest.mark.parametrize(
    ("last", "phase"),
    [
        # Another test below kills a controller once in each of the phases before the decision.
        pytest.param(last, phase, marks=[pytest.mark.long] * (phase in _BEFORE_THE_DECISION[:-1]))
        for last, (_, phases) in ROLLOUTS.items()
        for phase in phases
    ],
)
def test_a_controller_killed_before_any_write_resumes(last: str, phase: str, tmp_path: Path) -> None:
    fault, phases = ROLLOUTS[last]
    (tmp_path / "whole").mkdir()
    num_killed = 0
    tried: set[tuple[str, ...]] = set()
    found = list(looks(tmp_path, fault))
    assert {each for each, _ in found} == set(phases), "each phase has a test"
    for before in (before for each, before in found if each == phase):
        for number in itertools.count():
            folder = Path(shutil.copytree(before, before.with_name(f"{before.name}-{number}")))
            with pytest.MonkeyPatch.context() as patch:

                def look(folder: Path = folder, number: int = number, patch: Any = patch) -> None:
                    dying_before(number, patch)
                    look_once(folder, fault)

                code = forked(look)
            if code != -signal.SIGKILL:
                assert code == 0
                break
            num_killed += 1
            if (left := left_behind(folder)) in tried:
                continue
            tried.add(left)
            world = SimulatedWorld(folder, fault)
            resumed_in = Store.existing(folder / "canary.sqlite").record().phase
            stay_dead(world, resumed_in)
            back_at_s = world.clock()
            check_end(world, go_on(world), last)
            if resumed_in in ("rolling_back", "rolled_back"):
                assert world.candidate_requests_since(back_at_s) == 0
    assert num_killed >= 10
    assert len(tried) >= 3


def left_behind(folder: Path) -> tuple[str, ...]:
    """Return what a controller can resume from; equal if it would do the same."""
    connection = Store.existing(folder / "canary.sqlite")._connection
    files = ("arms.json", "world.json")
    return (*connection.iterdump(), *((folder / name).read_text() for name in files))


def kill_in(folder: Path, phase: str, fault: str) -> None:
    pause_in = "step/1" if phase == "paused" else ""
    command = [sys.executable, "-m", "tests.unit.canary.rollout_process", str(folder), fault, pause_in]
    with subprocess.Popen(command, cwd=REPOSITORY_ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == phase:
                break
        with pytest.raises(CanaryError, match="a rollout is already running"):
            go_on(SimulatedWorld(folder))
        process.kill()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("phase", "fault", "last"),
    [
        *((phase, "none", "promoted") for phase in ("preflight", "cold_start", "step/2", "promoting")),
        *(
            pytest.param(phase, "none", "promoted", marks=pytest.mark.long)
            for phase in ("loading", "shadow", "step/1")
        ),
        ("shadow", "acceptance", "rolled_back"),
        ("rolling_back", "acceptance", "rolled_back"),
    ],
)
def test_a_controller_killed_in_a_phase_is_resumed_by_another(
    phase: str, fault: str, last: str, tmp_path: Path
) -> None:
    kill_in(tmp_path, phase, fault)
    world = SimulatedWorld(tmp_path, FAULTS[fault])
    stay_dead(world, Store.existing(tmp_path / "canary.sqlite").record().phase)
    check_end(world, go_on(world), last)


def test_a_process_that_is_killed_while_paused_is_still_paused(tmp_path: Path) -> None:
    kill_in(tmp_path, "paused", "none")
    world = SimulatedWorld(tmp_path)
    store = Store.existing(tmp_path / "canary.sqlite")
    assert store.record().phase == "paused"
    stay_dead(world, "paused")
    rollout = store.latest()
    assert rollout is not None
    store.give(rollout, "resume")
    check_end(world, go_on(world), "promoted")
