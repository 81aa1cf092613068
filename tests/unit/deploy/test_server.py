"""Tests of ports, logs, processes and the doctor: everything in deployment that needs no Triton."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.deploy.__main__ import main
from pipelines.deploy.doctor import Finding, examine, print_findings
from pipelines.deploy.ports import Ports
from pipelines.deploy.process import ProcessIdentity
from pipelines.deploy.server import MAX_LINES, Server, error_lines, run_directory
from pipelines.deploy.triton.install import TritonInstall, shared_python
from pipelines.errors import PortInUseError, RecipeError, ServerStartError


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_port_in_use_is_named_with_its_owner_before_anything_starts(
    tmp_path: Path, taken_port: int
) -> None:
    (tmp_path / "model_repository").mkdir()
    ports = dataclasses.replace(Ports.free(), grpc=taken_port)
    with pytest.raises(PortInUseError) as refused:
        Server.start(tmp_path, ports)
    assert f"port {taken_port}" in str(refused.value)
    assert f"process {os.getpid()}" in str(refused.value)
    assert "--grpc-port" in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["model_repository"]


@pytest.mark.parametrize("ports", [Ports(8000, 8000, 8002), Ports(0, 8001, 8002), Ports(8000, 8001, 70000)])
def test_ports_that_are_none_are_refused(ports: Ports) -> None:
    with pytest.raises(ServerStartError, match="must be different numbers"):
        ports.check_free()


def test_ports_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTPROOF_GRPC_PORT", "18999")
    assert Ports.from_environment() == Ports(grpc=18999)
    monkeypatch.setenv("DRAFTPROOF_GRPC_PORT", "none")
    with pytest.raises(ServerStartError, match="DRAFTPROOF_GRPC_PORT='none'"):
        Ports.from_environment()


def test_a_run_directory_is_named_by_the_recipe_or_by_its_file(tmp_path: Path) -> None:
    assert run_directory("demo", tmp_path) == tmp_path / "demo"
    path = tmp_path / "mine.yaml"
    path.write_text("name: fast-pair\n")
    assert run_directory(str(path), tmp_path) == tmp_path / "fast-pair"
    with pytest.raises(RecipeError, match=r"other\.yaml"):
        run_directory(str(tmp_path / "other.yaml"), tmp_path)


def test_no_repository_means_no_start(tmp_path: Path) -> None:
    with pytest.raises(ServerStartError, match="draftproof repository"):
        Server.start(tmp_path, Ports.free())


LOG = """\
W1120 13:16:07.965164 1 pinned_memory_manager.cc:273] "CUDA driver version is insufficient"
E1120 13:16:07.965355 1 server.cc:241] "CudaDriverHelper has not been initialized."
I1120 13:16:08.000000 1 model_lifecycle.cc:472] "loading: target:1"
E1120 13:16:09.000000 1 model_lifecycle.cc:642] "failed to load 'target': EngineLoadError: no engine"
+--------+---------+--------------------------------+
| target | 1       | UNAVAILABLE: Internal: no engine |
+--------+---------+--------------------------------+
I1120 13:16:10.000000 1 server.cc:336] "All models are stopped, unloading models"
error: creating server: Internal - failed to load all models
"""


def test_error_lines_are_the_cause_and_not_the_tables(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(LOG)
    lines = error_lines(log).splitlines()
    assert len(lines) == 2
    assert "EngineLoadError: no engine" in lines[0]
    assert lines[1] == "error: creating server: Internal - failed to load all models"


def test_error_lines_keep_the_cause_whatever_follows_it(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        "\n".join(["EngineLoadError: the cause", *(f"RuntimeError: {number}" for number in range(99))])
    )
    lines = error_lines(log).splitlines()
    assert len(lines) == MAX_LINES
    assert (lines[0], lines[-1]) == ("EngineLoadError: the cause", "RuntimeError: 98")


def test_error_lines_of_a_log_without_errors_are_its_end(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("one\n\ntwo\n")
    assert error_lines(log) == "one\ntwo"
    assert error_lines(tmp_path / "absent") == ""


STARTING = """\
I1120 1 model_lifecycle.cc:839] "successfully loaded 'router'"
start: the draft's engine is mapped and warms up
I1120 1 model_lifecycle.cc:839] "successfully loaded 'speculative'"
"""


def test_a_start_reports_models_and_what_they_say_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("router", "speculative"):
        (tmp_path / "model_repository" / name).mkdir(parents=True)
        (tmp_path / "model_repository" / name / "config.pbtxt").touch()
    identity = ProcessIdentity.of(os.getpid())
    assert identity is not None
    server = Server(tmp_path, Ports.free(), identity)
    log = iter((STARTING[:60], STARTING[:61], STARTING, STARTING))

    def is_ready(self: Server) -> bool:
        written = next(log, None)
        self.log.write_text(written or STARTING)
        return written is None

    monkeypatch.setattr(Server, "is_ready", is_ready)
    lines: list[str] = []
    server.wait_ready(10.0, lines.append)
    assert [line.partition(" s  ")[2] for line in lines] == [
        "router is loaded, 1 of 2 models",
        "the draft's engine is mapped and warms up",
        "speculative is loaded, 2 of 2 models",
    ]


def start_sleeper(*program: str) -> tuple[subprocess.Popen[bytes], ProcessIdentity]:
    child = subprocess.Popen(program, start_new_session=True)
    identity = ProcessIdentity.of(child.pid)
    assert identity is not None
    return child, identity


def test_a_process_that_ends_when_asked_is_not_killed() -> None:
    child, identity = start_sleeper("sleep", "60")
    assert identity.is_alive
    assert identity.end(5.0)
    assert child.wait() == -signal.SIGTERM
    assert identity.end(5.0)


def test_a_process_that_does_not_end_is_killed(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    stubborn = f"trap '' TERM; touch {ready}; sleep 60; sleep 60"
    child, identity = start_sleeper("bash", "-c", stubborn)
    while not ready.exists():
        time.sleep(0.01)
    assert not identity.end(0.3)
    assert child.wait() == -signal.SIGKILL


def test_a_recycled_id_is_not_mistaken_for_the_process() -> None:
    mine = ProcessIdentity.of(os.getpid())
    assert mine is not None
    earlier = dataclasses.replace(mine, start_ticks=mine.start_ticks - 1)
    assert not earlier.is_alive
    assert earlier.end(0.0)  # and ends nobody


@pytest.mark.parametrize("content", ["", "{}", "no json", '{"ports": {}, "process": {"pid": 1}}'])
def test_a_damaged_pid_file_means_that_no_server_runs(tmp_path: Path, content: str) -> None:
    (tmp_path / "server.json").write_text(content)
    assert Server.running(tmp_path) is None


def test_a_server_of_an_older_version_is_found(tmp_path: Path) -> None:
    process = ProcessIdentity.of(os.getpid())
    assert process is not None
    written = {"ports": {"http": 8000, "grpc": 8001, "metrics": 8002}, "process": dataclasses.asdict(process)}
    (tmp_path / "server.json").write_text(json.dumps(written))
    server = Server.running(tmp_path)
    assert server is not None and (server.ports.openai, server.openai_url) == (0, "")


def test_the_backend_is_laid_out_once_and_executable(tmp_path: Path) -> None:
    install = TritonInstall.find()
    install.prepare_backend(tmp_path)
    stub = tmp_path / "python" / "triton_python_backend_stub"
    before = stub.stat()
    assert os.access(stub, os.X_OK)
    assert (tmp_path / "python" / "triton_python_backend_utils.py").is_file()
    install.prepare_backend(tmp_path)
    assert stub.stat().st_ino == before.st_ino


def test_the_server_finds_this_python_and_its_library_and_no_other(tmp_path: Path) -> None:
    variables = TritonInstall.find().environment(tmp_path)
    assert variables["PATH"].split(":")[0] == str(Path(sys.executable).parent)
    folders = variables["LD_LIBRARY_PATH"].split(":")
    assert folders[0].endswith("nvidia_pytriton.libs")
    library = shared_python()
    assert library is not None
    if library.is_absolute():
        assert (Path(folders[1]) / library.name).resolve() == library.resolve()
        assert str(library.parent) not in folders


def test_a_missing_shared_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.deploy.triton.install.shared_python", lambda: None)
    with pytest.raises(ServerStartError, match=r"apt install libpython3\."):
        TritonInstall.find().environment(tmp_path)


def test_the_doctor_finds_this_machine_fit(capsys: pytest.CaptureFixture[str]) -> None:
    findings = examine(Ports.free())
    assert print_findings(findings) == 0
    printed = capsys.readouterr().out
    for name in ("Python", "glibc", "Processor", "Memory", "numpy", "openvino", "Ports", "GPU"):
        assert name in printed


def test_the_doctor_says_what_does_not_work_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    findings = [Finding("Python", "3.11"), Finding("C library", "musl", "use glibc", ("demo", "serve"))]
    assert print_findings(findings) == 1
    printed = capsys.readouterr().out
    assert "MISSING C library" in printed
    assert "use glibc" in printed
    assert "These targets do not work on this machine: demo, serve." in printed


def test_the_doctor_notices_a_taken_port(taken_port: int) -> None:
    findings = {
        finding.name: finding for finding in examine(dataclasses.replace(Ports.free(), http=taken_port))
    }
    assert findings["Ports"].stops == ("serve",)


def test_without_a_compiler_the_doctor_says_what_needs_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    [finding] = [finding for finding in examine(Ports.free()) if finding.name == "g++"]
    assert finding.value == "absent"
    assert finding.remedy == "for attention of our own, and faster engines with AVX2 alone: apt install g++"
    assert not finding.stops


def test_stop_names_the_servers_that_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line's command stops it when typed."""
    own = Server(tmp_path / "other", Ports(), ProcessIdentity(1, 1))
    monkeypatch.setattr(Server, "all_running", lambda: [own])
    assert main(["stop", "--recipe", "no-such-pair-runs"]) == 0
    said = capsys.readouterr().out
    assert "no server of recipe no-such-pair-runs is running" in said
    assert "one of other is: draftproof stop --recipe other" in said


def test_commands_without_a_server_say_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "none.yaml"
    recipe.write_text("name: no-such-pair-runs\n")
    assert main(["stop", "--recipe", str(recipe)]) == 0
    assert main(["ready", "--recipe", str(recipe)]) == 1
    shown = capsys.readouterr()
    assert "no server of recipe no-such-pair-runs is running" in shown.out
    assert "draftproof serve" in shown.err
