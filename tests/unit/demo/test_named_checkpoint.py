"""Tests of how ``draftproof try`` tells a directory from an id of the hub."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.demo.own_pair import named_checkpoint


@pytest.mark.parametrize(
    "text", ["Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B@main", "hf://Qwen/Qwen3-0.6B@refs/pr/1"]
)
def test_an_id_of_the_hub(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert named_checkpoint(text) == f"hf://{text.removeprefix('hf://')}"


@pytest.mark.parametrize(
    "text", ["checkpoints/mine", "./mine", "../mine", "mine", "a/b/c", "checkpoints/a@b"]
)
def test_a_path_need_not_exist(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistyped directory is not asked for on the hub."""
    (tmp_path / "here/checkpoints").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    assert named_checkpoint(text) == str(Path(text).resolve())
