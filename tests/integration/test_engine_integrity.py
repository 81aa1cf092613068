"""Tests of engines that are damaged or exchanged before a server starts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from build.repository import render_recipe
from pipelines.errors import ServerStartError
from tests.integration.conftest import keep_models, tiny_recipe
from tests.support.damaged_engines import flip_a_bit, writable_copy
from tests.support.ready_server import ready_server

pytestmark = pytest.mark.triton


@pytest.fixture
def engines(tiny_pair: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    """Return a draft and a target that a test may damage."""
    copies = tmp_path / "draft", tmp_path / "target"
    for source, copy in zip(tiny_pair, copies, strict=True):
        writable_copy(source, copy)
    return copies


def render(engines: tuple[Path, Path], run: Path) -> Path:
    """Render a repository with a pair and the text model."""
    repository = render_recipe(tiny_recipe("tiny"), *engines, run)
    keep_models(repository, "speculative", "router")
    return repository.parent


# tests/unit/executor/test_engine_files.py damages each file in each way.
@pytest.mark.parametrize(
    ("role", "name"),
    [("draft", "engine.bin"), pytest.param("target", "tokenizer.json", marks=pytest.mark.long)],
)
def test_a_server_does_not_start_with_a_flipped_bit(
    engines: tuple[Path, Path], tmp_path: Path, role: str, name: str
) -> None:
    damaged = engines[role == "target"] / name
    with pytest.raises(ServerStartError) as refused:
        directory = render(engines, tmp_path)
        flip_a_bit(damaged)
        with ready_server(directory):
            pass
    assert f"{damaged} is missing or was changed since the engine was built: sha256 " in str(refused.value)


@pytest.mark.long
def test_a_server_does_not_start_with_another_engine_than_was_rendered(
    engines: tuple[Path, Path], tmp_path: Path
) -> None:
    directory = render(engines, tmp_path)
    engines[1].rename(tmp_path / "before")
    shutil.copytree(engines[0], engines[1])  # whole in itself
    with pytest.raises(ServerStartError) as refused, ready_server(directory):
        pass
    assert f"{engines[1]} holds another engine than the one that the repository was" in str(refused.value)
