"""Tests of ``draftproof try``: what it hands to the programs that write the recipe and demonstrate it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pipelines.demo import own_pair


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """Return the arguments of the programs that were run."""
    calls: list[Sequence[str]] = []

    def build(module: str, arguments: Sequence[str], report: Callable[[str], None]) -> dict[str, Any]:
        calls.append(arguments)
        return {"recipe": "/my/own.yaml"}

    def demonstrate(arguments: Sequence[str]) -> int:
        calls.append(arguments)
        return 0

    monkeypatch.setattr(own_pair, "run_build", build)
    monkeypatch.setattr(own_pair, "demonstrate_one", demonstrate)
    return calls


def test_prompts_go_into_the_recipe_and_from_there_into_every_program(
    told: list[Sequence[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.txt").write_text("my text")
    assert own_pair.main(["big", "small", "--prompts", "mine.txt"]) == 0
    built, shown = told
    assert list(built)[-2:] == ["--prompts", str(tmp_path / "mine.txt")]
    assert shown == ["--recipe", "/my/own.yaml"]
    told.clear()
    assert own_pair.main(["big", "small"]) == 0
    assert "--prompts" not in told[0]


def test_a_name_is_that_of_recipe_model_and_file(
    told: list[Sequence[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert own_pair.main(["big", "small", "--name", "coder"]) == 0
    assert list(told[0])[2:4] == ["--output", str(tmp_path / "coder.yaml")]
    assert list(told[0])[-2:] == ["--name", "coder"]


def test_prompts_that_cannot_be_used_are_an_error_before_anything_is_built(
    told: list[Sequence[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = tmp_path / "chat.jsonl"
    chat.write_text('{"messages": []}')
    assert own_pair.main(["big", "small", "--prompts", str(chat), "--json"]) == 1
    shown = capsys.readouterr()
    assert "line 1 is no prompt" in shown.err and json.loads(shown.out)["verdict"] == "fail"
    assert told == []


@pytest.mark.parametrize(
    "text", ["Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B@main", "hf://Qwen/Qwen3-0.6B@refs/pr/1"]
)
def test_an_id_of_the_hub(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert own_pair.named_checkpoint(text) == f"hf://{text.removeprefix('hf://')}"


@pytest.mark.parametrize(
    "text", ["checkpoints/mine", "./mine", "../mine", "mine", "a/b/c", "checkpoints/a@b"]
)
def test_a_path_need_not_exist(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistyped directory is not asked for on the hub."""
    (tmp_path / "here/checkpoints").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    assert own_pair.named_checkpoint(text) == str(Path(text).resolve())
