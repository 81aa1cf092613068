"""Tests of the comparison of KV caches, with small engines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.kv_caches import check_caches, measure
from docs.figures.kv_caches import kv_caches as table
from pipelines.errors import RecipeError
from pipelines.manifest import EngineFiles
from pipelines.text.token_map import TOKEN_MAP_FILE
from tests.support.tiny_engines import build_tiny_pair

TEXTS = [np.arange(begin, begin + 60, dtype=np.int32) for begin in (5, 900)]


def test_each_cache_is_compared_with_float32(tmp_path: Path) -> None:
    """The draft has the target's weights, so both choose the same tokens with the same cache."""
    draft, target = build_tiny_pair(tmp_path, draft="self")
    caches = measure(EngineFiles(target), EngineFiles(draft), TEXTS, [64])
    exact, *others = caches
    assert (exact["dtype"], exact["kl"], exact["top1"], exact["draft_agreement"]) == ("float32", 0, 1, 1)
    for cache in others:
        assert 0 < cache["kl"] < 0.01
        assert cache["draft_agreement"] == cache["top1"] <= 1
        assert cache["bytes_per_token"] < exact["bytes_per_token"]
    about = {
        **{"cpu": "C", "num_cores": 2, "load_average_1min": 0.5, "date": "2026-11-25T", "git_sha": "abc"},
        **{"command": "python -m x", "packages": {"openvino": "1"}, "python": "3", "recipe": "r"},
    }
    del exact["draft_agreement"]
    shown = {"rows": (1, 5, 9), "prompt_tokens": 64, "num_positions": 120, "conditions": about}
    text = table({"caches": caches, **shown})
    assert text.splitlines()[2].startswith("| `float32` | 2,048 | 0 | 100.0% | - | ")


def test_another_draft_agrees_less_often(tmp_path: Path) -> None:
    draft, target = build_tiny_pair(tmp_path, draft="random")
    caches = measure(EngineFiles(target), EngineFiles(draft), TEXTS, [64])
    assert all(cache["draft_agreement"] < 0.1 for cache in caches)


def test_engines_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    draft, target = build_tiny_pair(tmp_path, attention="draftproof")
    with pytest.raises(RecipeError, match="this target's cache belongs to its attention"):
        check_caches("target", EngineFiles(target), "demo-long")
    draft, _ = build_tiny_pair(tmp_path / "openvino")
    files = EngineFiles(draft)
    check_caches("draft", files, "demo")
    files.manifest["files"][TOKEN_MAP_FILE] = {}
    with pytest.raises(RecipeError, match="this draft reads tokens of its own"):
        check_caches("draft", files, "demo")
