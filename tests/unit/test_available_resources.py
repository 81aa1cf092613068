"""Tests of cores and memory: hardware threads, affinity, and what a container may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipelines.available_resources import available_bytes, available_cores


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a machine of four cores with two hardware threads each."""
    for number in range(8):
        topology = tmp_path / f"cpu{number}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{number % 4},{number % 4 + 4}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    return tmp_path


def test_hardware_threads_of_a_core_count_once(machine: Path) -> None:
    assert available_cores(machine, machine) == 4


def test_cores_of_others_do_not_count(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 4, 1})
    assert available_cores(machine, machine) == 2


@pytest.mark.parametrize(
    ("quota", "cores"), [("300000 100000", 3), ("50000 100000", 1), ("max 100000", 4), ("900000 100000", 4)]
)
def test_a_containers_quota_counts(machine: Path, quota: str, cores: int) -> None:
    (machine / "cpu.max").write_text(f"{quota}\n")
    assert available_cores(machine, machine) == cores


def test_processors_of_unknown_topology_are_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    assert available_cores(tmp_path, tmp_path) == 2


@pytest.mark.parametrize(
    ("cgroup", "kilobytes"),
    [
        (None, 8000),
        ({"memory.max": "max"}, 8000),
        ({"memory.max": str(5000 * 1024)}, 5000 - 3000 + 500),
        ({"memory.max": str(50_000 * 1024)}, 8000),
        ({"memory.max": str(5000 * 1024), "memory.stat": "anon 1"}, 8000),
    ],
)
def test_the_memory_of_a_container_counts_if_it_has_less(
    tmp_path: Path, cgroup: dict[str, str] | None, kilobytes: int
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:  9000 kB\nMemAvailable:    8000 kB\nHugePages_Total:  0\n")
    files = {"memory.current": str(3000 * 1024), "memory.stat": f"anon 1\ninactive_file {500 * 1024}\n"}
    for name, text in {**files, **cgroup}.items() if cgroup is not None else ():
        (tmp_path / name).write_text(text)
    assert available_bytes(tmp_path / "meminfo", tmp_path) == kilobytes * 1024
