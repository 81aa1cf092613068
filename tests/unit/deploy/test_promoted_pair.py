"""Tests of which pair a server of a run directory serves after a rollout."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pipelines.deploy import __main__ as command
from pipelines.deploy.pair_source import PairSource
from pipelines.deploy.server import Server
from pipelines.errors import ServerStartError


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
