"""A server loads at its start what belongs to it, and no pair that is on trial."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipelines.deploy import Ports, Server
from pipelines.deploy.models import PAIR_FILE, loading_options, models_at_start
from pipelines.deploy.process import ProcessIdentity
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


@pytest.mark.parametrize("record", ["", "[]", "{}", '{"loads_at_start": 1}', "\x00"])
def test_a_record_that_cannot_be_read_is_named(tmp_path: Path, record: str) -> None:
    add_model(tmp_path, "speculative_0123abcd", record)
    with pytest.raises(ServerStartError, match=f"speculative_0123abcd/{PAIR_FILE}.*make repository"):
        models_at_start(tmp_path)


class Index(http.server.BaseHTTPRequestHandler):
    answer = ""

    def do_POST(self) -> None:
        assert self.path == "/v2/repository/index"
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.answer.encode())

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server that answers only which models are ready."""
    listening = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Index)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    ports = Ports(http=listening.server_port, grpc=1, metrics=2)
    yield Server(tmp_path, ports, ProcessIdentity(1, 1))
    listening.shutdown()
    listening.server_close()


@pytest.mark.parametrize(
    ("ready", "expected"),
    [
        (["generate", "speculative"], True),
        (["generate", "speculative", "speculative_0123abcd"], True),
        (["generate"], False),
        ([], False),
    ],
)
def test_ready_are_the_models_of_the_start(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, ready: list[str], expected: bool
) -> None:
    repository = tmp_path / "model_repository"
    add_model(repository, "generate")
    add_model(repository, "speculative")
    add_model(repository, "speculative_0123abcd", '{"loads_at_start": false}')
    monkeypatch.setattr(Index, "answer", json.dumps([{"name": name, "state": "READY"} for name in ready]))
    assert server.is_ready() is expected


@pytest.mark.parametrize("answer", ["", "not JSON", "{}", '["generate"]'])
def test_nonsense_is_not_readiness(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    add_model(tmp_path / "model_repository", "generate")
    monkeypatch.setattr(Index, "answer", answer)
    assert not server.is_ready()
