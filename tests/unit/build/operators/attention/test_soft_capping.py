"""Tests of networks that cap attention scores: only attention of our own computes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from benchmarks.quality.engines import compile_network
from build.engines import build_engines
from build.networks.source import open_network
from build.own_pair import write_recipe
from build.preflight import check_recipe
from build.recipe import load_recipe, parse_recipe
from pipelines.errors import EngineBuildError, RecipeError
from tests.golden.families import save_family
from tests.support.compiler import needs_compiler
from tests.support.hugging_face_checkpoints import make_hugging_face
from tests.support.network_engines import count_rows_differing, decoded_rows

IDS = np.random.default_rng(1).integers(0, 448, 150).astype(np.int32)
NUM_PROMPT = 100  # more than the windows


@needs_compiler
@pytest.mark.parametrize("kv_cache_dtype", ["float16", "int8"])
def test_every_type_of_cache_keeps_the_row_rule(kv_cache_dtype: str, tmp_path: Path) -> None:
    save_family("gemma2", tmp_path / "checkpoint")
    network = open_network(tmp_path / "checkpoint").read()
    exact = compile_network(tmp_path / "exact", network, "none", "draftproof")
    engine = compile_network(tmp_path / "engine", network, "none", "draftproof", kv_cache_dtype)
    assert count_rows_differing(engine, IDS) == 0
    expected = decoded_rows(exact, IDS, NUM_PROMPT, 5)
    found = decoded_rows(engine, IDS, NUM_PROMPT, 5)
    assert 0 < np.abs(found - expected).max() < 1  # of logits up to 30


def gemma_pair(folder: Path, draft: str = "gemma2") -> tuple[str, str]:
    target = make_hugging_face(folder / "target", "gemma2")
    return str(target), str(make_hugging_face(folder / "draft", draft, seed=1))


@pytest.mark.parametrize(
    ("attention", "refused"),
    [
        ({}, "draft"),
        ({"draft": "draftproof"}, "target"),
        ({"target": "draftproof"}, "draft"),
        ({"target": "draftproof", "draft": "draftproof"}, None),
    ],
)
def test_a_recipe_with_openvinos_attention_is_refused_before_the_build(
    attention: dict[str, str], refused: str | None, tmp_path: Path
) -> None:
    raw: dict[str, Any] = {"name": "gemma", "serving": {"max_seq_len": 512}}
    for role, checkpoint in zip(("target", "draft"), gemma_pair(tmp_path), strict=True):
        raw[role] = {"checkpoint": checkpoint, "attention": attention.get(role, "openvino")}
    recipe = parse_recipe(raw, tmp_path / "gemma.yaml")
    if refused is None:
        check_recipe(recipe, tmp_path)
        return
    with pytest.raises(RecipeError, match=f"OpenVINO's attention cannot compute the {refused}") as caught:
        check_recipe(recipe, tmp_path)
    assert "which has attention scores that are capped" in caught.value.message
    assert "attn_logit_softcapping=50" in caught.value.message
    assert "'attention: draftproof'" in caught.value.remedy


@needs_compiler
@pytest.mark.parametrize("draft", ["gemma2", "llama"])
def test_a_recipe_that_is_written_has_the_attention_that_each_network_needs(
    draft: str, tmp_path: Path
) -> None:
    lines = list[str]()
    path = write_recipe(
        *gemma_pair(tmp_path, draft), tmp_path / "gemma.yaml", "int8", 512, 20e9, lines.append
    )
    roles = ["target", "draft"] if draft == "gemma2" else ["target"]
    assert [line.partition(":")[0] for line in lines if "'attention: draftproof' is set" in line] == roles
    written = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert [role for role in ("target", "draft") if written[role].get("attention")] == roles
    built = build_engines(load_recipe(path), tmp_path / "engines", lambda line: None)
    for role in ("target", "draft"):
        engine = json.loads((Path(built[role]) / "engine.json").read_text(encoding="utf-8"))
        assert (engine["attention"] == "draftproof") == (role in roles)


def test_a_machine_without_a_compiler_gets_no_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = gemma_pair(tmp_path)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EngineBuildError, match=r"g\+\+ is not on the PATH"):
        write_recipe(*pair, tmp_path / "gemma.yaml", "int8", 512, 20e9, lambda line: None)
    assert not (tmp_path / "gemma.yaml").exists()
