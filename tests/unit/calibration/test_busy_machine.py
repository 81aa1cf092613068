"""Tests of calibration on a busy core: costs keep their relation, and the user is told."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.bench.calibration.__main__ import main
from pipelines.bench.calibration.prompts import calibration_prompts
from pipelines.bench.calibration.step_costs import measure_step_costs
from pipelines.bench.calibration.step_times import StepTime, busy_share, time_step
from pipelines.executor.step import StepInputs
from pipelines.speculation.draft_length.calibration import BUSY_LIMIT
from tests.support.tiny_engines import TIMED_CONFIG, TINY_CALIBRATION
from tests.unit.calibration.test_acceptance_baseline import BASELINE


def compute(cpu_s: float) -> None:
    end_s = time.thread_time() + cpu_s
    while time.thread_time() < end_s:
        pass


class KnownEngine:
    """Computes for a known CPU time in a thread of its own, like an engine whose costs are known."""

    def __init__(self, cpu_s: float) -> None:
        self._cpu_s = cpu_s
        self._pool = ThreadPoolExecutor(1)
        self.config = TIMED_CONFIG

    def step(self, inputs: StepInputs) -> None:
        self._pool.submit(compute, self._cpu_s).result()

    def close(self) -> None:
        self._pool.shutdown()


@pytest.fixture
def engines() -> Iterator[Any]:
    """A draft and a target that takes twenty times as long, longer than a program's turn on a core.

    A draft step takes so long that handing it to another thread, some 0.1 ms, is small beside it.
    """
    own_cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(own_cores)})  # threads that start later inherit it
    draft, target = KnownEngine(0.002), KnownEngine(0.04)
    yield draft, target
    draft.close()
    target.close()
    os.sched_setaffinity(0, own_cores)


@pytest.fixture
def burner(engines: Any) -> Iterator[None]:
    """A program that never leaves the core of the engines."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        yield
        process.kill()


@pytest.mark.long  # burns a core for twenty seconds, which slows every other test
@pytest.mark.usefixtures("burner")
def test_a_busy_core_is_noticed_and_keeps_the_relation_of_the_costs(engines: Any) -> None:
    costs = measure_step_costs(*engines, max_rows=3)
    assert costs.busy_share is not None
    assert costs.busy_share > BUSY_LIMIT
    assert costs.target.seconds[0] / costs.draft.seconds[0] == pytest.approx(20, rel=0.25)


@pytest.mark.usefixtures("burner")
def test_the_cpu_time_of_a_step_does_not_include_what_it_waited_for(engines: Any) -> None:
    steps = [time_step(lambda: engines[1].step(None)) for _ in range(20)]
    assert sum(step.wall_s for step in steps) > 1.3 * 20 * 0.04
    assert sum(step.busiest_s for step in steps) == pytest.approx(20 * 0.04, rel=0.1)
    assert sum(step.waited_s for step in steps) > 0.3 * 20 * 0.04


def test_the_share_is_of_what_the_threads_ran_and_waited() -> None:
    quiet, busy = StepTime(0.01, 0.009, 0.018, 0.0), StepTime(0.02, 0.009, 0.018, 0.018)
    assert busy_share([quiet]) == 0.0
    assert busy_share([quiet, busy]) == pytest.approx(1 / 3)
    assert (quiet.was_quiet, busy.was_quiet) == (True, False)


def test_a_kernel_without_these_statistics_is_not_called_quiet() -> None:
    assert busy_share([StepTime(0.01, 0.0, 0.0, 0.0)]) is None


@pytest.mark.parametrize(("share", "is_warned"), [(0.4, True), (0.1, False), (None, False)])
def test_a_busy_calibration_is_warned_of_whenever_it_is_used(
    share: float | None, is_warned: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "calibration.json"
    sha256 = calibration_prompts(None).sha256
    replace(TINY_CALIBRATION, busy_share=share, prompts_sha256=sha256).write(path)
    BASELINE.add_to(path)
    pair = ["--draft", "none", "--target", "none", "--recipe", "/my own.yaml"]
    assert main([*pair, "--output", str(path)]) == 0
    warning = capsys.readouterr().out
    assert bool(warning) == is_warned
    if is_warned:
        assert "busy_share=0.40" in warning
        assert str(path) in warning
        assert "at most 0.1" in warning
        assert f"run: rm {path} && draftproof repository --recipe '/my own.yaml'" in warning
