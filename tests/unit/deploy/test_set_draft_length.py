"""Tests of the command that sets the draft length, and of the server's side that reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.deploy.__main__ import set_draft_length
from pipelines.errors import InvalidRequestError, RepositoryError
from pipelines.triton.backend.parameters import ModelParameters
from pipelines.triton.engine.speculative_answerer import DraftLengthSetting


@pytest.fixture
def run_directory(tmp_path: Path) -> Path:
    model = tmp_path / "model_repository" / "speculative"
    model.mkdir(parents=True)
    text = 'parameters { key: "max_draft_len" value: { string_value: "6" } }'
    (model / "config.pbtxt").write_text(text)
    return tmp_path


@pytest.mark.parametrize(("wanted", "length"), [("adaptive", None), ("0", 0), ("6", 6)])
def test_what_is_set_is_what_the_server_reads(run_directory: Path, wanted: str, length: int | None) -> None:
    path = set_draft_length(run_directory, wanted)
    rendered = {"num_draft_tokens": "3", "max_draft_len": "6", "draft_length_file": str(path)}
    assert DraftLengthSetting(ModelParameters("speculative", rendered)).read() == length


@pytest.mark.parametrize("wanted", ["7", "-1", "off", "", "2.5", "9" * 5000])
def test_an_invalid_length_is_refused_and_nothing_is_written(run_directory: Path, wanted: str) -> None:
    with pytest.raises(InvalidRequestError, match="max_draft_len=6") as caught:
        set_draft_length(run_directory, wanted)
    assert repr(wanted) in caught.value.message and caught.value.remedy
    assert not (run_directory / "draft_length.json").exists()


def test_without_a_repository_there_is_nothing_to_set(tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match="draftproof serve"):
        set_draft_length(tmp_path, "0")
