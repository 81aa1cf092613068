"""Tests of starting NVIDIA's Triton on stand-ins: whole and incomplete."""

from __future__ import annotations

import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.deploy.ports import Ports
from pipelines.deploy.server import Server
from pipelines.errors import ServerStartError
from pipelines.process import ProcessIdentity
from tests.conftest import REPOSITORY_ROOT
from tests.support.gpu_recipes import gpu_recipe, rendered
from tests.support.processes import started
from tests.support.stand_in_gpu_machine import H100, GpuMachine

pytestmark = pytest.mark.long  # a stand-in of a GPU


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GpuMachine:
    """Return a machine with one H100 and no programs but its driver's."""
    machine = GpuMachine(tmp_path / "machine")
    machine.install("nvidia-smi")
    machine.set_gpus(H100)
    for name, value in machine.variables().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("pipelines.deploy.triton.nvidia_triton.ROOT", tmp_path / "no-triton")
    return machine


@pytest.fixture
def native(machine: GpuMachine) -> GpuMachine:
    machine.install_triton()
    machine.install("mpirun")
    return machine


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "demo"
    yield rendered(directory, gpu_recipe())
    server = Server.running(directory)
    if server is not None:
        server.stop(5.0)


def test_the_spawning_server_starts_answers_and_stops(native: GpuMachine, run: Path) -> None:
    server = Server.start(run, Ports.free())
    server.wait_ready(120)
    [mpirun], [triton] = native.calls("mpirun"), native.calls("tritonserver")
    assert mpirun["arguments"][:2] == ["-n", "1"]
    assert triton["folder"] == str(REPOSITORY_ROOT)
    assert triton["variables"]["TRTLLM_ORCHESTRATOR"] == "1"
    assert triton["variables"]["TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES"] == "1"
    assert triton["variables"]["PATH"].split(":")[0] == str(Path(sys.executable).parent)
    assert triton["variables"]["PYTHONPATH"] == str(REPOSITORY_ROOT)
    assert triton["variables"]["DRAFTPROOF_GRPC_ADDRESS"] == f"unix:{run}/triton/grpc:1"
    options = dict(argument.partition("=")[::2] for argument in triton["arguments"])
    assert options["--allow-http"] == "false"
    assert options["--grpc-address"] == f"unix:{run}/triton/grpc"
    assert options["--metrics-address"] == f"unix:{run}/triton/metrics"
    assert options["--cuda-memory-pool-byte-size"] == "0:0"
    assert triton["variables"]["DRAFTPROOF_KEY"] == server.key != ""
    for call in (mpirun, triton):  # everybody may read command lines
        assert not any(server.key in argument for argument in call["arguments"])
    assert Server.running(run) == server
    assert server.stop(10.0)
    assert Server.running(run) is None
    assert not server.is_ready()


def test_a_server_that_dies_ends_with_its_error_lines(native: GpuMachine, run: Path) -> None:
    (native.state / "bad_engine").touch()
    server = Server.start(run, Ports.free())
    with pytest.raises(ServerStartError, match="engine of another version"):
        server.wait_ready(120)
    assert Server.running(run) is None


def remove(machine: GpuMachine, name: str) -> None:
    (machine.programs / name).unlink()


def break_driver(machine: GpuMachine) -> None:
    (machine.state / "broken_driver").touch()


MISSING = {
    "no driver": (lambda machine: remove(machine, "nvidia-smi"), "nvidia-smi is not on PATH"),
    "broken driver": (break_driver, "couldn't communicate with the NVIDIA driver"),
    "no gpu": (lambda machine: machine.set_gpus(), "nvidia-smi lists no GPU"),
    "odd driver": (lambda machine: machine.set_gpus("A100, [N/A], [N/A], [N/A], 450"), "A100"),
    "no triton": (lambda machine: shutil.rmtree(machine.triton), "no tritonserver with backends/tensorrtllm"),
}


@pytest.mark.parametrize("case", MISSING)
def test_what_is_missing_is_named_and_the_embedded_runtime_offered(
    native: GpuMachine, run: Path, case: str
) -> None:
    take_away, named = MISSING[case]
    take_away(native)
    with pytest.raises(ServerStartError) as refused:
        Server.start(run, Ports.free())
    assert named in str(refused.value)
    assert "--runtime embedded" in refused.value.remedy
    assert not (run / "server.json").exists()


def test_a_recipe_for_more_gpus_than_there_are_is_refused(native: GpuMachine, tmp_path: Path) -> None:
    run = rendered(tmp_path / "large", gpu_recipe(tp_size=4))
    with pytest.raises(ServerStartError, match=r"has no 1, 2, 3: there are 1 x NVIDIA H100"):
        Server.start(run, Ports.free())


def test_without_mpirun_the_message_names_the_container(native: GpuMachine, run: Path) -> None:
    remove(native, "mpirun")
    server = Server.start(run, Ports.free())
    with pytest.raises(ServerStartError, match=r"mpirun.* is not on PATH.*use NVIDIA's container"):
        server.wait_ready(120)


def test_in_a_container_our_command_becomes_the_server(native: GpuMachine, run: Path) -> None:
    ports = Ports.free()
    command = [sys.executable, "-m", "pipelines.deploy", "run", str(run), "--address", "0.0.0.0"]
    command += ["--http-port", str(ports.http), "--grpc-port", str(ports.grpc)]
    command += ["--metrics-port", str(ports.metrics), "--openai-port", "0"]
    with started(command, cwd=REPOSITORY_ROOT) as process:
        identity = ProcessIdentity.of(process.pid)
        assert identity is not None
        Server(run, ports, identity).wait_ready(120)
        command_line = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
        assert b"pipelines.triton.gateway" in command_line, "a parent would keep SIGTERM from the server"
        for port in (ports.http, ports.grpc, ports.metrics):
            # all addresses, not the loopback's
            socket.create_connection(("127.0.0.2", port), timeout=120).close()
        process.terminate()
        assert process.wait(120) == 0
