"""Tests of ports, logs, processes and the doctor: everything in deployment that needs no Triton."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.deploy.__main__ import main
from pipelines.deploy.doctor import Check, examine, print_checks
from pipelines.deploy.ports import Ports
from pipelines.deploy.server import Server, error_lines, run_directory
from pipelines.deploy.triton.install import TritonInstall, shared_python
from pipelines.errors import PortInUseError, RecipeError, ServerStartError
from pipelines.process import ProcessIdentity


@pytest.fixture
def taken_port() -> Iterator[int]:
    lower = [socket.socket(), socket.socket()]
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        for free in lower:
            free.close()  # listing /proc takes one of their numbers, and has closed it when links are read
        yield listener.getsockname()[1]


def test_a_port_in_use_is_named_before_any_start(tmp_path: Path, taken_port: int) -> None:
    (tmp_path / "model_repository").mkdir()
    ports = dataclasses.replace(Ports.free(), grpc=taken_port)
    with pytest.raises(PortInUseError) as refused:
        Server.start(tmp_path, ports)
    assert f"port {taken_port}" in str(refused.value)
    assert "--grpc-port" in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["model_repository"]


@pytest.mark.parametrize("ports", [Ports(8000, 8000, 8002), Ports(0, 8001, 8002), Ports(8000, 8001, 70000)])
def test_ports_that_are_none_are_refused(ports: Ports) -> None:
    with pytest.raises(ServerStartError, match="are not different numbers"):
        ports.check_free()


def test_a_run_directory_is_named_by_the_recipe_or_by_its_file(tmp_path: Path) -> None:
    assert run_directory("demo", tmp_path) == tmp_path / "demo"
    path = tmp_path / "mine.yaml"
    path.write_text("name: fast-pair\n")
    assert run_directory(str(path), tmp_path) == tmp_path / "fast-pair"
    with pytest.raises(RecipeError, match=r"other\.yaml"):
        run_directory(str(tmp_path / "other.yaml"), tmp_path)


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


@pytest.mark.parametrize(
    ("log", "lines"),
    [
        (
            LOG,
            [
                "E1120 13:16:09.000000 1 model_lifecycle.cc:642] \"failed to load 'target': EngineLoadError: "
                'no engine"',
                "error: creating server: Internal - failed to load all models",
            ],
        ),
        (
            "\n".join(["EngineLoadError: the cause", *(f"RuntimeError: {each}" for each in range(99))]),
            [
                "EngineLoadError: the cause",
                *(f"RuntimeError: {each}" for each in (*range(5), *range(93, 99))),
            ],
        ),
        ("one\n\ntwo\n", ["one", "two"]),
        ("", []),
    ],
)
def test_error_lines_are_the_cause_else_the_end(log: str, lines: list[str], tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text(log)
    assert error_lines(tmp_path / "server.log").splitlines() == lines


STARTING = """\
I1120 1 model_lifecycle.cc:839] "successfully loaded 'router'"
start: the draft's engine is mapped and warms up
I1120 1 model_lifecycle.cc:839] "successfully loaded 'speculative'"
"""


def test_a_start_reports_models_and_their_words_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize(
    ("program", "ends"), [("echo; read -t 60", True), ("trap '' TERM; echo; sleep 60; sleep 60", False)]
)
def test_a_process_is_killed_only_if_it_does_not_end(program: str, ends: bool) -> None:
    child = subprocess.Popen(
        ["bash", "-c", program], start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    identity = ProcessIdentity.of(child.pid)
    assert identity is not None and child.stdout is not None
    child.stdout.readline()  # its trap is set
    earlier = dataclasses.replace(identity, start_ticks=identity.start_ticks - 1)
    assert not earlier.is_alive and earlier.end(0.0), "an id that is used again is another process"
    assert identity.is_alive
    assert identity.end(10.0 if ends else 0.3) is ends
    child.communicate()
    assert child.returncode == (-signal.SIGTERM if ends else -signal.SIGKILL)


@pytest.mark.parametrize("content", ["", "{}", "no json", '{"ports": {}, "process": {"pid": 1}}'])
def test_a_damaged_pid_file_means_that_no_server_runs(tmp_path: Path, content: str) -> None:
    (tmp_path / "server.json").write_text(content)
    assert Server.running(tmp_path) is None


def test_the_backend_is_laid_out_once_and_executable(tmp_path: Path) -> None:
    install = TritonInstall.find()
    install.prepare_backend(tmp_path)
    stub = tmp_path / "python" / "triton_python_backend_stub"
    before = stub.stat()
    assert os.access(stub, os.X_OK)
    assert (tmp_path / "python" / "triton_python_backend_utils.py").is_file()
    install.prepare_backend(tmp_path)
    assert stub.stat().st_ino == before.st_ino


def test_a_server_without_bash_says_so_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerStartError, match=f"bash, which is not on PATH={tmp_path}"):
        TritonInstall.find().environment(tmp_path)


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


def test_the_doctor_finds_this_machine_fit(capsys: pytest.CaptureFixture[str]) -> None:
    checks = examine(Ports.free())
    assert print_checks(checks) == 0
    printed = capsys.readouterr().out
    for name in ("Python", "glibc", "Processor", "Memory", "numpy", "openvino", "Ports", "GPU"):
        assert name in printed


def test_the_doctor_says_what_does_not_work_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    checks = [Check("Python", "3.11"), Check("C library", "musl", "use glibc", ("demo", "serve"))]
    assert print_checks(checks) == 1
    printed = capsys.readouterr().out
    assert "MISSING C library" in printed
    assert "use glibc" in printed
    assert "These commands do not work on this machine: demo, serve." in printed


def test_the_doctor_names_a_taken_port_and_a_missing_compiler(
    taken_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    found = {each.name: each for each in examine(dataclasses.replace(Ports.free(), http=taken_port))}
    assert found["Ports"].stops == ("serve",)
    assert found["g++"].remedy.endswith("apt install g++") and not found["g++"].stops


def test_stop_and_ready_say_which_servers_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = Server(tmp_path / "other", Ports(), ProcessIdentity(1, 1))
    monkeypatch.setattr(Server, "all_running", lambda: [own])
    (tmp_path / "none.yaml").write_text("name: no-such-pair-runs\n")
    assert main(["stop", "--recipe", str(tmp_path / "none.yaml")]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "no server of recipe no-such-pair-runs is running, or ever was here",
        "one of other is: draftproof stop --recipe other",
    ]
    assert main(["ready", "--recipe", "no-such-pair-runs"]) == 1
    assert "draftproof serve" in capsys.readouterr().err


def test_a_wrong_recipe_is_named_also_while_its_server_runs(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    running = Server(tmp_path / "runs", Ports(), ProcessIdentity(1, 1))
    monkeypatch.setattr(Server, "running", lambda directory: running)
    engine = "{checkpoint: engines/demo_pair/target}"
    right = f"name: runs\ntarget: {engine}\ndraft: {engine}\n"
    for key, problem in (("max_sq_len", "max_sq_len"), ("max_seq_len", "running already")):
        (tmp_path / "runs.yaml").write_text(f"{right}serving: {{{key}: 512}}\n")
        assert main(["serve", "--recipe", str(tmp_path / "runs.yaml")]) == 1
        assert problem in capfd.readouterr().err
