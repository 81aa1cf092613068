"""Tests of invalid speculation settings: the server does not start, and its error names the remedy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines.deploy.server import Server
from pipelines.errors import ServerStartError
from tests.integration.conftest import keep_models
from tests.support.ready_server import ready_server

pytestmark = pytest.mark.triton


@pytest.fixture
def directory(render: Callable[..., Path]) -> Path:
    directory: Path = render("tiny-invalid")
    keep_models(directory / "model_repository", "speculative")
    return directory


def words_of_refusal(directory: Path) -> str:
    with pytest.raises(ServerStartError) as refused, ready_server(directory):
        pass
    assert Server.running(directory) is None
    return str(refused.value)


def test_a_rendered_draft_length_above_its_ceiling(directory: Path) -> None:
    config = directory / "model_repository" / "speculative" / "config.pbtxt"
    text = config.read_text()
    old = 'key: "num_draft_tokens" value: { string_value: "4" }'
    assert old in text
    config.write_text(text.replace(old, old.replace("4", "9")))
    words = words_of_refusal(directory)
    assert "num_draft_tokens=9 of the recipe is not" in words
    assert "correct the recipe and run 'draftproof repository'" in words


@pytest.mark.long
def test_a_set_draft_length_that_is_none(directory: Path) -> None:
    path = directory / "draft_length.json"
    path.write_text('{"num_draft_tokens": "many"}')
    words = words_of_refusal(directory)
    assert "draft_length.json is invalid" in words
    assert str(path) in words and "0 to max_draft_len=8" in words
    assert "write it with 'draftproof draft-length'" in words
