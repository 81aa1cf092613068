"""Tests of which models a server loads at its start: its own, and no pair on trial."""

from __future__ import annotations

import http.server
import shutil
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from build.rendering.templates import TEMPLATES
from pipelines.deploy.ports import Ports
from pipelines.deploy.process import ProcessIdentity
from pipelines.deploy.server import Server
from pipelines.deploy.triton.models import PAIR_FILE, ModelDependencies, loading_options, models_at_start
from pipelines.errors import ServerStartError


def add_model(repository: Path, name: str, record: str | None = None) -> None:
    (repository / name).mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text("")
    if record is not None:
        (repository / name / PAIR_FILE).write_text(record)


def test_a_pair_on_trial_is_not_loaded_at_the_start(tmp_path: Path) -> None:
    add_model(tmp_path, "generate")
    add_model(tmp_path, "speculative", '{"loads_at_start": true}')
    add_model(tmp_path, "speculative_0123abcd", '{"loads_at_start": false}')
    (tmp_path / ".half-made").mkdir()
    assert models_at_start(tmp_path) == ("generate", "speculative")
    assert loading_options(tmp_path) == [
        "--model-control-mode=explicit",
        "--strict-readiness=false",
        "--load-model=generate",
        "--load-model=speculative",
    ]


def test_the_steps_of_an_ensemble_are_read_from_its_configuration(tmp_path: Path) -> None:
    for name in ("generate", "preprocessing"):
        add_model(tmp_path, name)
    add_model(tmp_path, "ensemble")
    shutil.copyfile(TEMPLATES / "ensemble" / "config.pbtxt", tmp_path / "ensemble" / "config.pbtxt")
    dependencies = ModelDependencies(tmp_path)
    assert dependencies.needed_by("ensemble") == {
        *("ensemble", "preprocessing", "${speculative_model}", "postprocessing")
    }
    assert dependencies.ensembles_with("preprocessing") == ["ensemble"]
    assert dependencies.needed_by("generate") == {"generate"}


@pytest.mark.parametrize("record", ["", "[]", "{}", '{"loads_at_start": 1}', "\x00"])
def test_a_record_that_cannot_be_read_is_named(tmp_path: Path, record: str) -> None:
    add_model(tmp_path, "speculative_0123abcd", record)
    with pytest.raises(ServerStartError, match=f"speculative_0123abcd/{PAIR_FILE}.*draftproof repository"):
        models_at_start(tmp_path)


class Health(http.server.BaseHTTPRequestHandler):
    """A health endpoint that answers as the gateway does."""

    status = 200

    def do_GET(self) -> None:
        assert self.path == "/v2/health/ready"
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.mark.parametrize(("status", "expected"), [(200, True), (503, False), (404, False)])
def test_a_server_is_ready_when_its_gateway_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, expected: bool
) -> None:
    """The gateway decides which models that takes: tests/unit/gateway/test_supervisor.py."""
    monkeypatch.setattr(Health, "status", status)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Health) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        server = Server(
            tmp_path, Ports(listening.server_port, grpc=1, metrics=2, openai=0), ProcessIdentity(1, 1)
        )
        assert server.is_ready() is expected
        listening.shutdown()


@pytest.mark.parametrize("answer", [b"", b"garbage\r\n\r\n", b"HTTP/1.1 twohundred\r\n\r\n"])
def test_invalid_http_is_not_readiness(tmp_path: Path, answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def reply() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        threading.Thread(target=reply, daemon=True).start()
        ports = Ports(listening.getsockname()[1], grpc=1, metrics=2, openai=0)
        assert not Server(tmp_path, ports, ProcessIdentity(1, 1)).is_ready()


def test_a_port_without_a_server_is_not_readiness(tmp_path: Path) -> None:
    assert not Server(tmp_path, Ports.free(), ProcessIdentity(1, 1)).is_ready()
