from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked_program import run_forked
from tests.support.hub_server import Hub, HubRepository, running_hub
from tests.support.hugging_face_checkpoints import make_hugging_face

PAIR = ("hf://org/Big", "hf://org/small")
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


@dataclass(frozen=True)
class Outcome:
    """Holds the exit code and the output of a program."""

    code: int | None
    shown: str
    error: str

    @property
    def result(self) -> Any:
        return json.loads(self.shown.splitlines()[-1])


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """Return a hub with a pair."""
    with running_hub() as hub:
        for seed, name in enumerate(("Big", "small")):
            directory = make_hugging_face(tmp_path / "made" / name, seed=seed)
            hub.repositories[f"org/{name}"] = HubRepository.of(directory)
        yield hub


@pytest.fixture
def program(hub: Hub, tmp_path: Path) -> Callable[..., Outcome]:
    """Return a function that runs one of ``build``'s programs with a cache of its own."""

    def run(module: str, *arguments: str, **environment: str) -> Outcome:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        clean.update(
            hub.environment(tmp_path / "cache", **environment), DRAFTPROOF_CACHE=str(tmp_path / "own")
        )
        return Outcome(*run_forked(module, arguments, clean, tmp_path))

    return run


@pytest.fixture
def try_pair(program: Callable[..., Outcome], tmp_path: Path) -> Callable[..., Outcome]:
    """Return a function that writes the recipe of a pair."""

    def run(*pair: str, **environment: str) -> Outcome:
        chosen = pair or PAIR
        arguments = (*chosen, "--output", str(tmp_path / "mine.yaml"), "--max-seq-len", "256")
        return program("build.own_pair", *arguments, **environment)

    return run
