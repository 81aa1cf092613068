"""Tests of how a rollout finds its server: on this machine, or in a container."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.canary import server_address
from pipelines.canary.__main__ import main
from pipelines.canary.run_files import state_file
from pipelines.canary.server_address import ServerAddress
from pipelines.canary.start import start
from pipelines.deploy.ports import Ports
from pipelines.deploy.triton.launch import Launch
from pipelines.deploy.triton.place import KEY_FILE
from pipelines.errors import ServerUnavailableError


def write_key(run_directory: Path) -> None:
    (run_directory / KEY_FILE).write_text(f"key {len(Api.asked)}\n")


class Api:
    """A server that answers at the third attempt."""

    asked: list[str]
    run_directory: Path

    def __init__(self, url: str, key: str) -> None:
        assert key == f"key {len(Api.asked)}", "the key is drawn at each start, so it is read each time"
        self.url = url

    def index(self) -> tuple[()]:
        Api.asked.append(self.url)
        write_key(Api.run_directory)
        if len(Api.asked) < 3:
            raise ServerUnavailableError("no server answers")
        return ()

    def close(self) -> None:
        pass


def test_a_server_in_a_container_is_asked_by_name_at_its_usual_ports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its processes are not visible from here, so an answer shows that it runs; it may still be loading."""
    Api.asked, Api.run_directory = [], tmp_path
    write_key(tmp_path)
    monkeypatch.setattr(server_address, "RepositoryApi", Api)
    monkeypatch.setattr(server_address, "_POLL_S", 0.0)
    monkeypatch.setenv("DRAFTPROOF_GRPC_PORT", "18999")
    address = ServerAddress.of(tmp_path, "draftproof-demo")
    assert Api.asked == ["http://draftproof-demo:8000"] * 3
    assert address.key == "key 2"
    assert address.grpc == "grpc://draftproof-demo:18999"
    assert address.metrics == "http://draftproof-demo:8002/metrics"


def test_a_server_of_this_machine_is_found_by_its_pid_file(tmp_path: Path) -> None:
    with pytest.raises(ServerUnavailableError, match="no server of this recipe is running"):
        ServerAddress.of(tmp_path)
    assert ServerAddress(Ports(1, 2, 3), "key").http == "http://127.0.0.1:1"


def test_a_server_that_does_not_answer_means_that_nothing_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DRAFTPROOF_HTTP_PORT", str(Ports.free().http))
    monkeypatch.setattr(Launch, "ready_timeout_s", 0.0)
    with pytest.raises(ServerUnavailableError, match="no server answers"):
        start(tmp_path, "new", Path("none.yaml"), lambda cycle: None, host="127.0.0.1")
    assert not state_file(tmp_path).exists()
    monkeypatch.setattr("pipelines.canary.__main__.run_directory", lambda recipe: tmp_path)
    assert main(["start", "--candidate", "new", "--host", "127.0.0.1"]) == 1
    assert "no server answers" in capsys.readouterr().err
