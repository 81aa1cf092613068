"""Tests of servers that do not start, with damaged engines or wrong settings: the error names the remedy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from build.repository import render_recipe
from pipelines.deploy.server import Server
from pipelines.errors import ServerStartError
from tests.integration.conftest import keep_models, tiny_recipe
from tests.support.damaged_engines import flip_a_bit, writable_copy
from tests.support.ready_server import ready_server

pytestmark = pytest.mark.triton


@pytest.fixture
def engines(tiny_pair: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    """Return a draft and a target that a test may damage."""
    return writable_copy(tiny_pair[0], tmp_path / "draft"), writable_copy(tiny_pair[1], tmp_path / "target")


@pytest.fixture
def directory(engines: tuple[Path, Path], tmp_path: Path) -> Path:
    """Return a run directory with a rendered pair and no other model."""
    repository = render_recipe(tiny_recipe("tiny"), *engines, tmp_path)
    keep_models(repository, "speculative")
    return repository.parent


def words_of_refusal(directory: Path) -> str:
    with pytest.raises(ServerStartError) as refused, ready_server(directory):
        pass
    assert Server.running(directory) is None
    return str(refused.value)


def test_a_flipped_bit(engines: tuple[Path, Path], directory: Path) -> None:
    """``tests/unit/executor/test_engine_files.py`` damages each file in each way."""
    damaged = engines[0] / "engine.bin"
    flip_a_bit(damaged)
    words = words_of_refusal(directory)
    assert f"{damaged} is missing or was changed since the engine was built: sha256 " in words


@pytest.mark.long
def test_another_engine_than_was_rendered(engines: tuple[Path, Path], directory: Path) -> None:
    shutil.rmtree(engines[1])
    shutil.copytree(engines[0], engines[1])  # whole in itself
    words = words_of_refusal(directory)
    assert f"{engines[1]} holds another engine than the one that the repository was" in words


@pytest.mark.long
def test_a_set_draft_length_that_is_none(directory: Path) -> None:
    path = directory / "draft_length.json"
    path.write_text('{"num_draft_tokens": "many"}')
    words = words_of_refusal(directory)
    assert f"{path}" in words and "0 to max_draft_len=8" in words
    assert "write it with 'draftproof draft-length'" in words
