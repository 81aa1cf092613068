"""Tests of NVIDIA's Triton behind the real Open MPI: the server has all cores, and both engines spawn."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipelines.deploy.ports import Ports
from pipelines.deploy.server import Server
from pipelines.errors import ServerStartError
from tests.stand_in_tensorrt_llm.ranks import RANKS, library
from tests.support.stand_in_gpu_machine import GpuMachine
from tests.unit.deploy.test_gpu_server import machine, run

__all__ = ["machine", "run"]

CORES = len(os.sched_getaffinity(0))
MPIRUN = shutil.which("mpirun")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(MPIRUN is None or library() is None, reason="needs Open MPI: apt install openmpi-bin"),
]


@pytest.fixture
def spawning(machine: GpuMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GpuMachine:
    """A machine with NVIDIA's Triton and one slot; its server takes it before any engine."""
    machine.install_triton(program="spawning_tritonserver")
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost slots=1\n")
    monkeypatch.setenv("OMPI_MCA_orte_default_hostfile", str(hosts))
    monkeypatch.setenv("PATH", f"{machine.programs}:{os.environ['PATH']}:/usr/bin:/bin")
    return machine


def mpirun_without(machine: GpuMachine, flag: str) -> None:
    """Install an ``mpirun`` that is the real one, but never sees one of our flags."""
    program = machine.programs / "mpirun"
    program.write_text(
        f'#!/bin/bash\nall=" $* "\nexec {MPIRUN} ${{all/ {flag} / }}\n'  # no argument has a space
    )
    program.chmod(0o755)


def started(run: Path) -> Server:
    server = Server.start(run, Ports.free())
    server.wait_ready(120)
    return server


def ranks(machine: GpuMachine, role: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in machine.state.glob(f"rank-{role}-*.json")]


def test_both_engines_spawn_concurrently_with_every_core_and_our_variables(
    spawning: GpuMachine, run: Path
) -> None:
    mpirun_without(spawning, "nothing")
    server = started(run)
    assert len(ranks(spawning, "draft")) == len(ranks(spawning, "target")) == RANKS
    for role in ("server", "draft", "target"):
        for rank in ranks(spawning, role):
            assert rank["cores"] == CORES
            assert rank["TRTLLM_ORCHESTRATOR"] == "1"
            assert rank["TRTLLM_KVCACHE_TRANSFER_BUFFER_SIZE"] == "0B"
    assert server.stop(10.0)


@pytest.mark.skipif(CORES < 2, reason="needs a second core")
def test_without_our_binding_the_server_has_one_core(spawning: GpuMachine, run: Path) -> None:
    mpirun_without(spawning, "--bind-to none")
    assert started(run).stop(10.0)
    assert [rank["cores"] for rank in ranks(spawning, "server")] == [1]


def test_without_oversubscription_the_engines_find_no_slot(spawning: GpuMachine, run: Path) -> None:
    mpirun_without(spawning, "--oversubscribe")
    with pytest.raises(ServerStartError, match="ended before it was ready"):
        started(run)
    assert "MPI_ERR_SPAWN" in (run / "server.log").read_text()
