"""Tests of engines that are damaged or exchanged, while a server runs and before it starts."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from build.rendering.rendered_pair import calibration_file
from build.repository import render_recipe
from pipelines.client import Client, CompletionRequest
from pipelines.deploy.server import Server
from pipelines.errors import ServerStartError
from tests.integration.conftest import MAX_BATCH_SIZE, TIMEOUTS, keep_models, tiny_recipe
from tests.support.damaged_engines import flip_a_bit, writable_copy
from tests.support.ready_server import ready_server

pytestmark = pytest.mark.triton

MODELS = ("generate", "generate_target")
PROMPTS = ("def main(", "import os\n", "class Tree:\n    def __init__", "\n\n\n" * 40)


@pytest.fixture
def engines(tiny_pair: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    """Return a draft and a target that a test may damage."""
    copies = tmp_path / "draft", tmp_path / "target"
    for source, copy in zip(tiny_pair, copies, strict=True):
        writable_copy(source, copy)
    shutil.copyfile(calibration_file(*tiny_pair), calibration_file(*copies))
    return copies


def render(engines: tuple[Path, Path], run: Path) -> Path:
    """Render a repository with a pair and the text model."""
    repository = render_recipe(tiny_recipe("tiny"), *engines, run)
    keep_models(repository, "speculative", "router")
    return repository.parent


def answers(server: Server, num_requests: int) -> list[list[int]]:
    """Return both models' answers to all prompts; the number of concurrent requests decides the shapes."""
    asked = [
        (CompletionRequest(prompt, max_tokens=40, temperature=temperature, seed=7), model)
        for prompt in PROMPTS
        for temperature in (0.0, 1.0)
        for model in MODELS
    ]
    url = f"grpc://127.0.0.1:{server.ports.grpc}"
    with Client.connect(url, TIMEOUTS) as client, ThreadPoolExecutor(num_requests) as pool:
        return [list(each.output_ids) for each in pool.map(lambda args: client.generate(*args), asked)]


@pytest.mark.long  # tests/unit/executor/test_weights.py has the copies that it reads
def test_a_server_does_not_see_what_becomes_of_its_engines(
    engines: tuple[Path, Path], tmp_path: Path
) -> None:
    """With memory-mapped engines, damage changed tokens, and truncation killed both models' processes."""
    directory = render(engines, tmp_path / "run")
    with ready_server(directory) as server:
        right = answers(server, 1)
        for engine in engines:
            weights = engine / "engine.bin"
            weights.write_bytes(os.urandom(weights.stat().st_size))
        assert answers(server, MAX_BATCH_SIZE) == right
        for engine in engines:
            for path in engine.iterdir():
                os.truncate(path, 0)
        assert answers(server, 1) == answers(server, MAX_BATCH_SIZE) == right
        for engine in engines:
            shutil.rmtree(engine)
        assert answers(server, MAX_BATCH_SIZE) == right


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
    assert f"{damaged} is missing or was changed since the engine was built; sha256 " in str(refused.value)


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
