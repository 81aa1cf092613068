"""Tests of the setting of the draft length: the command that writes it, and the server that reads it."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np
import pytest

from pipelines.deploy.__main__ import set_draft_length
from pipelines.errors import InvalidRequestError, RepositoryError
from pipelines.triton.backend.parameters import ModelParameters
from pipelines.triton.engine.speculative_answerer import (
    MAX_SESSIONS,
    MAX_TOKENS,
    DraftLengthSetting,
    Sessions,
)


def setting(folder: Path, num_draft_tokens: str = "adaptive", max_draft_len: str = "8") -> DraftLengthSetting:
    values = {"num_draft_tokens": num_draft_tokens, "max_draft_len": max_draft_len}
    return DraftLengthSetting(
        ModelParameters("speculative", {**values, "draft_length_file": str(folder / "draft_length.json")})
    )


def write(path: Path, text: str, when_s: float) -> None:
    path.write_text(text)
    os.utime(path, (when_s, when_s))


def test_the_recipes_setting_holds_until_a_file_says_otherwise_and_after_it(tmp_path: Path) -> None:
    path = tmp_path / "draft_length.json"
    live = setting(tmp_path, "5")
    assert live.read() == 5
    write(path, '{"num_draft_tokens": 0}', 1000)
    assert live.read() == 0
    write(path, '{"num_draft_tokens": null}', 1001)
    assert live.read() is None
    write(path, '{"num_draft_tokens": 3}', 1002)
    assert live.read() == 3
    path.unlink()
    assert live.read() == 5


NESTED = '{"num_draft_tokens": ' + "[" * 200_000


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "3", '{"num_draft_tokens": 9}', '{"num_draft_tokens": true}', '{"num_draft_token": 3}'),
        pytest.param(NESTED, id="nested"),
        pytest.param('{"num_draft_tokens": ' + "9" * 10_000 + "}", id="a number of 10,000 digits"),
    ],
)
def test_an_invalid_file_is_reported_once_and_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    live = setting(tmp_path, "4")
    write(tmp_path / "draft_length.json", text, 1000)
    caplog.set_level(logging.ERROR)
    for _ in range(3):
        assert live.read() == 4
    assert len(caplog.records) == 1
    assert "stays the same" in caplog.text


@pytest.mark.parametrize("text", ["", "[]", '{"num_draft_tokens": 9}', '{"num_draft_tokens": -1}'])
def test_a_server_does_not_start_with_an_invalid_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "draft_length.json"
    path.write_text(text)
    with pytest.raises(InvalidRequestError, match="max_draft_len=8") as caught:
        setting(tmp_path)
    assert str(path) in caught.value.message and "draftproof draft-length" in caught.value.remedy


@pytest.mark.parametrize(("text", "length"), [("adaptive", None), ("0", 0), ("8", 8)])
def test_the_recipes_setting_is_read_from_the_rendered_model(
    tmp_path: Path, text: str, length: int | None
) -> None:
    assert (setting(tmp_path, text).read(), setting(tmp_path, text).max_draft_len) == (length, 8)


def test_a_length_above_the_ceiling_is_refused(tmp_path: Path) -> None:
    adaptive = setting(tmp_path)
    for good in (None, 0, 8):
        adaptive.check(good)
    for bad in (-1, 9):
        with pytest.raises(InvalidRequestError, match="max_draft_len=8"):
            adaptive.check(bad)


def test_the_sessions_that_were_used_most_recently_are_remembered() -> None:
    sessions, answer = Sessions(), [np.array([1, 2], np.int32)]
    for session_id in ("", "a", *(f"other {number}" for number in range(MAX_SESSIONS - 1)), "a"):
        sessions.remember(session_id, answer)
    assert sessions.answer_ids("").size == 0 and sessions.answer_ids("a").tolist() == [1, 2, 1, 2]
    sessions.remember("new", answer)
    assert sessions.answer_ids("other 0").size == 0 and sessions.answer_ids("a").size == 4


def test_of_a_session_the_latest_answers_are_kept() -> None:
    sessions = Sessions()
    sessions.remember("a", [np.arange(2, dtype=np.int32), np.arange(2, 5, dtype=np.int32)])
    sessions.remember("a", [])
    assert sessions.answer_ids("a").tolist() == [0, 1, 2, 3, 4]
    sessions.remember("a", [np.arange(5, MAX_TOKENS + 2, dtype=np.int32)])
    assert sessions.answer_ids("a").tolist() == list(range(2, MAX_TOKENS + 2))
    assert sessions.answer_ids("a").base is None


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
