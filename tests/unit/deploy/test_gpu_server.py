"""Tests of starting NVIDIA's Triton on stand-ins: alone, by MPI, and incomplete."""

from __future__ import annotations

import shutil
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from build.recipe import REPOSITORY_ROOT
from pipelines.deploy.__main__ import main
from pipelines.deploy.ports import Endpoint, Ports
from pipelines.deploy.process import ProcessIdentity
from pipelines.deploy.server import Server
from pipelines.deploy.triton.command import triton_command
from pipelines.deploy.triton.nvidia_triton import wait_for
from pipelines.deploy.triton.place import TritonPlace
from pipelines.errors import ServerStartError
from tests.support.gpu_recipes import gpu_recipe, rendered
from tests.support.processes import started
from tests.support.stand_in_gpu_machine import H100, GpuMachine


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


def test_ranks_that_mpi_starts_share_the_work(native: GpuMachine, tmp_path: Path) -> None:
    native.set_gpus(H100, H100)
    run = rendered(tmp_path / "fast", gpu_recipe(tp_size=2, fast_logits=True))
    with Server.start(run, Ports.free()) as server:
        server.wait_ready(120)
        # orchestrator, one rank of the draft, two of the target
        wait_for_calls(native, "tritonserver", 4)
        calls = {call["variables"]["OMPI_COMM_WORLD_RANK"]: call for call in native.calls("tritonserver")}
    assert sorted(calls) == ["0", "1", "2", "3"]
    assert {call["variables"]["TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES"] for call in calls.values()} == {"0"}
    for rank, call in calls.items():
        explicit = [text for text in call["arguments"] if text.startswith(("--load-model", "--allow-"))]
        silent = ["--allow-grpc=false", "--allow-metrics=false"]
        loaded = ["--load-model=draft", "--load-model=target"]
        everything = [f"--load-model={name}" for name in ("draft", "generate", "target")]
        assert explicit == ["--allow-http=false", *(everything if rank == "0" else silent + loaded)]
        assert not any("memory-pool" in text for text in call["arguments"])
    prefixes = {
        text for call in calls.values() for text in call["arguments"] if "shm-region-prefix-name" in text
    }
    assert len(prefixes) == 4


def test_leader_mode_tells_the_backend_so(
    native: GpuMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTLLM_ORCHESTRATOR", "1")  # left over in somebody's shell
    run = rendered(tmp_path / "leader", gpu_recipe(mode="leader"))
    with Server.start(run, Ports.free()) as server:
        server.wait_ready(120)
        [call] = native.calls("tritonserver")
    assert call["variables"]["TRTLLM_ORCHESTRATOR"] == "0"


def wait_for_calls(machine: GpuMachine, name: str, count: int) -> None:
    deadline_s = time.monotonic() + 120
    while len(machine.calls(name)) < count:
        assert time.monotonic() < deadline_s, machine.calls(name)
        time.sleep(0.05)


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
    "odd driver": (lambda machine: machine.set_gpus("A100, [N/A], [N/A], 450"), "A100"),
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
    assert all((refused.value.what, refused.value.values, refused.value.limit, refused.value.remedy))
    assert not (run / "server.json").exists()


@pytest.mark.parametrize(
    ("num_gpus", "sizes", "message"),
    [
        (1, {"tp_size": 4}, r"no GPU 1, 2, 3; there are 1 x NVIDIA H100"),
        (8, {"tp_size": 16, "num_nodes": 2}, "needs several machines"),
    ],
)
def test_a_recipe_for_more_gpus_than_there_are_here_is_refused(
    native: GpuMachine, tmp_path: Path, num_gpus: int, sizes: dict[str, int], message: str
) -> None:
    native.set_gpus(*[H100] * num_gpus)
    run = rendered(tmp_path / "large", gpu_recipe(**sizes))
    with pytest.raises(ServerStartError, match=message):
        Server.start(run, Ports.free())


def test_without_mpirun_the_message_names_the_container(native: GpuMachine, run: Path) -> None:
    remove(native, "mpirun")
    server = Server.start(run, Ports.free())
    with pytest.raises(ServerStartError, match=r"mpirun was not found.*use NVIDIA's container"):
        server.wait_ready(120)


def test_a_worker_that_does_not_come_up_is_named() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        with pytest.raises(ServerStartError, match=rf"127\.0\.0\.1, port {port}"):
            wait_for({"leader": 1, "127.0.0.1": 1}, port, timeout_s=0.1, poll_s=0.02)
        listener.listen()
        wait_for({"leader": 1, "127.0.0.1": 1}, port, timeout_s=0.1, poll_s=0.02)


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


def test_the_leader_of_several_machines_starts_the_ranks_of_all(
    native: GpuMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited_for: list[str] = []
    monkeypatch.setattr("pipelines.deploy.triton.command.wait_for", lambda hosts: waited_for.extend(hosts))
    for name, value in (
        ("LEADER_ADDRESS", "pair-0.pair.default"),
        ("GROUP_SIZE", "2"),
        ("WORKER_INDEX", "0"),
    ):
        monkeypatch.setenv(f"LWS_{name}", value)
    run = rendered(tmp_path / "nodes", gpu_recipe(tp_size=2, num_nodes=2))
    place = TritonPlace.make(run)
    command = triton_command(run, place, Endpoint(Ports.free()))
    assert waited_for == ["pair-0", "pair-0-1.pair.default"]
    with started(command.arguments, env=command.environment) as process:
        wait_for_calls(native, "tritonserver", 4)
        process.terminate()
        process.wait(120)
    [mpirun] = native.calls("mpirun")
    arguments = mpirun["arguments"]
    assert arguments[arguments.index("--host") + 1] == "pair-0:3,pair-0-1.pair.default:1"
    ssh_options = arguments[arguments.index("plm_rsh_args") + 1]
    assert ssh_options.startswith("-p 2222 -i /etc/draftproof-ssh/id_ed25519 ")
    assert "StrictHostKeyChecking=no" not in ssh_options
    assert not any(place.server_key in argument or place.triton_key in argument for argument in arguments)
    for call in native.calls("tritonserver"):  # which login over SSH would not bring along
        assert call["variables"].items() >= place.variables().items()


def test_a_rank_without_the_keys_is_refused(
    native: GpuMachine, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("DRAFTPROOF_KEY", "a key")
    monkeypatch.delenv("DRAFTPROOF_TRITON_KEY", raising=False)
    assert main(["rank", str(run)]) == 1
    refused = capsys.readouterr().err
    assert "DRAFTPROOF_TRITON_KEY, DRAFTPROOF_SHARED_MEMORY" in refused
    assert "a key" not in refused


def test_a_rank_without_mpi_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rank", str(run)]) == 1
    assert "OMPI_COMM_WORLD_RANK=''" in capsys.readouterr().err
