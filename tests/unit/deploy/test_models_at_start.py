"""Tests of which models a server loads at its start, and of when it is ready."""

from __future__ import annotations

import shutil
import socket
import threading
from pathlib import Path

import pytest

from build.rendering.templates import TEMPLATES
from pipelines.deploy.ports import Ports
from pipelines.deploy.server import Server
from pipelines.deploy.triton.models import ModelDependencies, loading_options, models_at_start
from pipelines.process import ProcessIdentity


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
