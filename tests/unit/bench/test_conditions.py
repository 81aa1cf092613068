"""Tests of what other programs used of the cores, in a made /proc."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipelines.bench.reporting.conditions import OtherPrograms


def write_proc(proc: Path, ticks_of_core: int, own_ticks: int, child_ticks: int) -> None:
    core = min(os.sched_getaffinity(0))
    times = f"{ticks_of_core} 0 0 9999 9999 0 0 0 0 0"  # user ... idle iowait ...
    proc.mkdir(exist_ok=True)
    (proc / "stat").write_text(f"cpu  {times}\ncpu{core} {times}\nintr 5\n")
    for pid, parent, ticks in ((os.getpid(), 1, own_ticks), (4_000_001, os.getpid(), child_ticks)):
        (proc / str(pid)).mkdir(exist_ok=True)
        (proc / str(pid) / "stat").write_text(f"{pid} (a b) S {parent} 0 0 0 0 0 0 0 0 0 {ticks} 0 0 0")


@pytest.mark.parametrize(("of_core", "share"), [(300, 0.0), (500, 0.5)])
def test_the_time_of_others_is_that_of_the_cores_without_ours(
    of_core: int, share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cores = len(os.sched_getaffinity(0))
    times_s = iter((0.0, 400 / os.sysconf("SC_CLK_TCK") / cores))
    monkeypatch.setattr("time.monotonic", lambda: next(times_s))
    write_proc(tmp_path, 1000, 100, 10)
    with OtherPrograms(tmp_path) as others:
        write_proc(tmp_path, 1000 + of_core, 300, 110)
    assert others.share == share
    assert others.were_busy == bool(share)


def test_without_the_kernels_figures_nobody_is_to_blame(tmp_path: Path) -> None:
    with OtherPrograms(tmp_path) as others:
        pass
    assert (others.share, others.were_busy) == (0.0, False)
