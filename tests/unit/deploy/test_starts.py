"""Tests of a start: its files, its lock, which pair and models are loaded, and when it is ready."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from build.recipe import load_recipe
from build.rendering.templates import TEMPLATES
from build.repository import launch_of
from pipelines.deploy import __main__ as command
from pipelines.deploy.__main__ import main
from pipelines.deploy.pair_source import PairSource
from pipelines.deploy.ports import Ports
from pipelines.deploy.server import LOCK, Server, lock_run_directory
from pipelines.deploy.triton.launch import Launch
from pipelines.deploy.triton.models import ModelDependencies, loading_options, models_at_start
from pipelines.errors import ServerStartError
from pipelines.process import ProcessIdentity
from tests.support.gpu_recipes import gpu_recipe
from tests.support.processes import started


def add_model(repository: Path, name: str) -> Path:
    (repository / name).mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text("")
    return repository / name


def test_all_models_of_the_repository_are_loaded_at_the_start(tmp_path: Path) -> None:
    for name in ("speculative", "generate"):
        add_model(tmp_path, name)
    (tmp_path / ".half-made").mkdir()
    assert models_at_start(tmp_path) == ("generate", "speculative")
    assert loading_options(tmp_path) == [
        "--model-control-mode=explicit",
        "--strict-readiness=false",
        "--load-model=generate",
        "--load-model=speculative",
    ]


def test_the_steps_of_an_ensemble_are_read_from_its_configuration(tmp_path: Path) -> None:
    add_model(tmp_path, "generate")
    for name in ("ensemble", "preprocessing", "postprocessing"):
        add_model(tmp_path, name)
        shutil.copyfile(TEMPLATES / name / "config.pbtxt", tmp_path / name / "config.pbtxt")
    dependencies = ModelDependencies(tmp_path)
    assert dependencies.needed_by("ensemble") == {
        *("ensemble", "preprocessing", "speculative", "postprocessing", "ensemble_steps")
    }
    assert dependencies.ensembles_with("ensemble_steps") == ["ensemble", "postprocessing", "preprocessing"]
    assert dependencies.needed_by("generate") == {"generate"}


@pytest.mark.parametrize(
    ("answer", "is_ready"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n", False),
        (b"", False),
        (b"garbage\r\n\r\n", False),
        (b"HTTP/1.1 twohundred\r\n\r\n", False),
    ],
)
def test_a_server_is_ready_when_its_gateway_says_so(tmp_path: Path, answer: bytes, is_ready: bool) -> None:
    """The gateway decides which models that takes: tests/unit/gateway/test_supervisor.py."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def reply() -> None:
            connection, _ = listening.accept()
            with connection:
                asked.append(connection.recv(65536))
                connection.sendall(answer)

        threading.Thread(target=reply, daemon=True).start()
        ports = Ports(listening.getsockname()[1], grpc=1, metrics=2, openai=0)
        assert Server(tmp_path, ports, ProcessIdentity(1, 1)).is_ready() is is_ready
    assert asked[0].startswith(b"GET /v2/health/ready ")


def test_a_port_without_a_server_is_not_readiness(tmp_path: Path) -> None:
    assert not Server(tmp_path, Ports.free(), ProcessIdentity(1, 1)).is_ready()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"format": 6, "runtime": "cuda"}',
        '{"format": 6, "runtime": "embedded", "unheard_of": 1}',
        '{"runtime": "embedded"}',
        '{"format": 5, "runtime": "embedded"}',
    ],
)
def test_a_launch_file_that_cannot_be_used_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "launch.json").write_text(content)
    with pytest.raises(ServerStartError, match="draftproof repository"):
        Launch.read(tmp_path)


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    launch_of(load_recipe("demo")).write(tmp_path)
    assert Launch.read(tmp_path) == Launch()
    recipe = gpu_recipe(tp_size=4, draft_tp_size=2)
    launch_of(recipe).write(tmp_path)
    assert Launch.read(tmp_path) == Launch("tensorrt_llm", recipe.tensorrt_llm.container, (0, 1, 2, 3))
    assert [path.name for path in tmp_path.iterdir()] == ["launch.json"]


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    directory = tmp_path / "volume"
    directory.mkdir()
    return directory


def test_a_second_server_is_refused_for_as_long_as_the_first_one_runs(
    volume: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lock passes to the program that the process becomes, as tritonserver's does."""
    program = (
        "import os, pathlib, sys; from pipelines.deploy.server import lock_run_directory;"
        "lock_run_directory(pathlib.Path(sys.argv[1])); os.execv('/bin/sh', ['sh', '-c', 'echo; read line'])"
    )
    command = [sys.executable, "-c", program, str(volume)]
    with started(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        first.stdout.readline()
        assert main(["run", str(volume)]) == 1
        assert "another server uses this run directory" in capsys.readouterr().err
    lock_run_directory(volume)


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / LOCK).mkdir()
    with pytest.raises(ServerStartError, match=r"not writable: .*; create it"):
        lock_run_directory(tmp_path)


@pytest.fixture
def rendered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """Record what is rendered, for servers that do not start."""
    asked: list[Sequence[str]] = []
    run = tmp_path / "demo"
    run.mkdir()

    def build(module: str, arguments: Sequence[str], report: Any) -> dict[str, Any]:
        assert module == "build.repository"
        asked.append(arguments)
        return {"model_repository": str(run / "model_repository")}

    def start(*arguments: Any, **options: Any) -> Any:
        raise ServerStartError("it starts elsewhere")

    monkeypatch.setattr(command, "run_build", build)
    monkeypatch.setattr("pipelines.building.run_build", build)
    monkeypatch.setattr(command, "run_directory", lambda recipe: run)
    monkeypatch.setattr(command.Server, "start", start)
    monkeypatch.setattr(command, "lock_run_directory", lambda directory: None)
    monkeypatch.setattr(command, "_become", lambda server: 0)
    return asked


def test_a_recipe_s_server_serves_the_promoted_pair_under_its_own_name(
    rendered: list[Sequence[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "demo"
    command.main(["serve", "--recipe", "demo"])
    PairSource("/new.yaml", served_model_name="demo").promote(run)
    command.main(["serve", "--recipe", "demo"])
    own, promoted = rendered
    assert list(own[:2]) == ["--recipe", "demo"]
    assert promoted[:6] == [
        *("--recipe", "/new.yaml", "--served-model-name", "demo", "--run-directory", str(run))
    ]
    assert "demo: a rollout has promoted /new.yaml" in capsys.readouterr().out
    (run / "promoted.json").write_text("{}")
    assert command.main(["serve", "--recipe", "demo"]) == 1
    assert "remove " in capsys.readouterr().err


def test_a_container_serves_the_promoted_pair_until_it_is_given_another_package(
    rendered: list[Sequence[str]], tmp_path: Path
) -> None:
    run, old, other = (tmp_path / name for name in ("demo", "old", "other"))
    new = tmp_path / "new"
    new.mkdir()
    PairSource(str(new), served_model_name="demo", instead_of=str(old)).promote(run)
    for package in (old, other):
        assert command.main(["run", str(run), "--package", str(package)]) == 0
    assert [arguments[1] for arguments in rendered] == [str(new), str(other)]
    state = json.loads((run / "server.json").read_text())
    assert state["process"]["pid"] == os.getpid(), "a rollout finds the process that becomes the server"
    assert Server.running(run) is not None
