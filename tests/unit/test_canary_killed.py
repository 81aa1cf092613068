"""A controller may be killed at any point; run: pytest tests/unit/test_canary_killed.py.

Once before each single write, with SIGKILL in a process that was forked for it; and once in each phase, from
outside, in a process that was started for it.
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

from pipelines.canary.analysis.faults import NO_FAULT, Fault, less_accepted
from pipelines.canary.analysis.limits import Limit
from pipelines.canary.controller import Controller, Look
from pipelines.canary.phases import ENDED
from pipelines.canary.record import RolloutRecord
from pipelines.canary.state import Store, sole_controller
from pipelines.errors import CanaryError
from tests.conftest import REPOSITORY_ROOT
from tests.unit.rollout_process import FAULTS
from tests.unit.simulated_world import (
    CANDIDATE,
    CANDIDATE_CONTROL,
    CONTROL,
    EASY_LIMITS,
    PLAN,
    STABLE,
    SimulatedWorld,
    begun,
)

BAD = less_accepted(0.5)
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
    survival=LAX,
    goodput=LAX,
    ttft=LAX,
    itl=LAX,
    e2e_tail=LAX,
    tokens=Limit(0.5, 0.1),
    errors=Limit(0.5, 0.1),
    timeouts=Limit(0.5, 0.1),
    acceptance_rate=Limit(0.5, 0.2),
    acceptance_length=LAX,
    speed_up=dict.fromkeys(EASY_LIMITS.speed_up, LAX),
)


def go_on(world: SimulatedWorld) -> RolloutRecord:
    """A new controller, from the files alone."""
    store = Store.existing(world.folder / "canary.sqlite")
    rollout = store.latest()
    assert rollout is not None
    with sole_controller(world.folder / "canary.sqlite"):
        Controller(store, rollout, world, world.clock).run(lambda look: None, world.sleep)
    return store.record()


def stay_dead(world: SimulatedWorld, phase: str) -> None:
    """Nobody controls for longer than the lease."""
    dead_at_s = world.clock()
    world.sleep(1.2 * PLAN.lease_s)
    if phase in ("settling", "promoted"):
        return  # it is the stable pair
    assert world.candidate_requests_since(dead_at_s + PLAN.lease_s) == 0


def check_end(world: SimulatedWorld, record: RolloutRecord, last: str) -> None:
    """Nothing is missing, nothing is there twice, and the server is as the last phase says."""
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
    """How a copy of this process that does so ended: 0, or minus the signal."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads; the copy has no need of theirs
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
    """Kill this process before its write of that number; writes of one kind in a row count once."""
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


def looks(folder: Path, fault: Fault) -> Iterator[Path]:
    """The files as they are before looks of a rollout: each phase's first one, and that which ends it."""
    world = SimulatedWorld(folder / "whole", fault)
    store, rollout = Store(world.folder / "canary.sqlite"), begun(SHORT, LAX_LIMITS)
    store.begin(rollout)
    controller = Controller(store, rollout, world, world.clock)
    is_first = True
    for number in itertools.count():
        before = Path(shutil.copytree(world.folder, folder / f"look-{number}"))
        look = controller.look()
        if is_first or look.transition is not None:
            yield before
        is_first = look.transition is not None
        if look.position.phase in ENDED:
            return
        if look.transition is None:
            world.sleep(SHORT.tick_s)


def look_once(folder: Path, fault: Fault) -> None:
    """What a controller that goes on does first, and the time until it looks again."""
    world = SimulatedWorld(folder, fault)
    store = Store.existing(folder / "canary.sqlite")
    rollout = store.latest()
    assert rollout is not None

    def stop(look: Look) -> None:
        if look.transition is None or look.position.phase in ENDED:
            os._exit(0)

    Controller(store, rollout, world, world.clock).run(stop, world.sleep)


@pytest.mark.parametrize(("fault", "last"), [(NO_FAULT, "promoted"), (BAD, "rolled_back")])
def test_whoever_is_killed_before_any_write_goes_on(fault: Fault, last: str, tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    num_killed = 0
    tried: set[tuple[str, ...]] = set()
    for before in looks(tmp_path, fault):
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
            phase = Store.existing(folder / "canary.sqlite").record().phase
            stay_dead(world, phase)
            back_at_s = world.clock()
            check_end(world, go_on(world), last)
            if phase in ("rolling_back", "rolled_back"):
                assert world.candidate_requests_since(back_at_s) == 0
    assert num_killed > 50
    assert len(tried) > 15


def left_behind(folder: Path) -> tuple[str, ...]:
    """What a controller can go on from: equal if it would do the same."""
    connection = Store.existing(folder / "canary.sqlite")._connection
    files = ("arms.json", "world.json")
    return (*connection.iterdump(), *((folder / name).read_text() for name in files))


def kill_in(folder: Path, phase: str, fault: str) -> None:
    pause_in = "step/1" if phase == "paused" else ""
    command = [sys.executable, "-m", "tests.unit.rollout_process", str(folder), fault, pause_in]
    with subprocess.Popen(command, cwd=REPOSITORY_ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == phase:
                break
        with pytest.raises(CanaryError, match="a rollout is under way"):
            go_on(SimulatedWorld(folder))
        process.kill()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("phase", "fault", "last"),
    [
        *(
            (phase, "none", "promoted")
            for phase in ("preflight", "loading", "cold_start", "shadow", "step/1", "step/2", "promoting")
        ),
        ("shadow", "acceptance", "rolled_back"),
        ("rolling_back", "acceptance", "rolled_back"),
    ],
)
def test_a_process_that_is_killed_in_a_phase_goes_on_in_another(
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
