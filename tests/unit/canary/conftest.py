"""A rendered pair in service, and candidates beside it, for tests of rollouts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from build.checkpoints.tokenizer_file import read_tokenizer
from build.files import write_manifest
from build.recipe import Recipe, load_recipe
from build.rendering.second_pair import render_second_pair
from build.repository import render_recipe
from pipelines.canary.controller.candidate import CandidatePair
from pipelines.manifest import sha256_file
from tests.support.tiny_engines import write_tokenizer

DEMO = load_recipe("demo")
_ENGINE = {
    **{"num_layers": 12, "num_kv_heads": 3, "head_size": 64},
    **{"kv_block_size": 32, "kv_cache_dtype": "float32"},
}

Render = Callable[..., CandidatePair]


def _write_engine(directory: Path, **manifest: Any) -> Path:
    if directory.is_dir():
        return directory
    directory.mkdir(parents=True)
    (directory / "engine.bin").write_bytes(b"weights")
    (directory / "engine.json").write_text(json.dumps(_ENGINE))
    tokenizer = directory / "tokenizer.json"
    write_tokenizer(tokenizer)
    identity = {
        "tokenizer_identity_sha256": read_tokenizer(tokenizer).sha256,
        "tokenizer_sha256": sha256_file(tokenizer),
    }
    write_manifest(directory, {"fingerprint": directory.name, "end_ids": [0], **identity, **manifest})
    return directory


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a run directory with the repository of the pair ``draft-1`` and ``target-1``."""
    engines = [_write_engine(tmp_path / f"{role}-1") for role in ("draft", "target")]
    return render_recipe(DEMO, *engines, tmp_path).parent


@pytest.fixture
def rendered(tmp_path: Path, run: Path) -> Render:
    """Return a function that renders a candidate of a draft and a target by their numbers.

    Dictionaries ``draft`` and ``target`` change the manifests of engines that do not exist yet.
    """

    def make(numbers: tuple[int, int] = (2, 2), recipe: Recipe = DEMO, **manifests: Any) -> CandidatePair:
        engines = [
            _write_engine(tmp_path / f"{role}-{number}", **manifests.get(role, {}))
            for role, number in zip(("draft", "target"), numbers, strict=True)
        ]
        return CandidatePair.read(run, render_second_pair(recipe, *engines, run).speculative_model)

    return make
