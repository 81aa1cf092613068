"""Tests of whose products an engine gets, by processor and compiler."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from build.engines import build_engines
from build.operators.choice import with_chosen_products
from build.recipe import Recipe, load_recipe
from tests.support.compiler import needs_compiler

OLD = frozenset({"avx", "avx2", "fma", "f16c"})


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr("build.operators.choice.processor_flags", lambda: OLD | request.param)


def with_linear(recipe: Recipe, draft: str, target: str) -> Recipe:
    return dataclasses.replace(
        recipe,
        draft=dataclasses.replace(recipe.draft, linear=draft),
        target=dataclasses.replace(recipe.target, linear=target),
    )


def choices(recipe: Recipe, lines: list[str] | None = None) -> tuple[str, str]:
    chosen = with_chosen_products(recipe, [].append if lines is None else lines.append)
    return chosen.draft.linear, chosen.target.linear


@needs_compiler
@pytest.mark.parametrize("processor", [frozenset()], indirect=True)
def test_without_vnni_products_are_our_own_unless_the_recipe_says_otherwise(processor: None) -> None:
    recipe = load_recipe("demo-large")
    assert choices(recipe) == ("draftproof", "draftproof")
    assert choices(with_linear(recipe, "openvino", "auto")) == ("openvino", "draftproof")


@pytest.mark.parametrize("processor", [{"avx512_vnni"}, {"avx_vnni"}], indirect=True)
def test_with_vnni_they_are_openvinos_unless_the_recipe_says_otherwise(processor: None) -> None:
    recipe = load_recipe("demo-large")
    assert choices(recipe) == ("openvino", "openvino")
    assert choices(with_linear(recipe, "auto", "draftproof")) == ("openvino", "draftproof")


@pytest.mark.parametrize("processor", [frozenset()], indirect=True)
@pytest.mark.parametrize("quantization", ["none", "checkpoint"])
def test_inputs_that_are_not_rounded_stay_with_openvino(processor: None, quantization: str) -> None:
    recipe = load_recipe("demo-large")
    target = dataclasses.replace(recipe.target, quantization=quantization)
    assert choices(dataclasses.replace(recipe, target=target))[1] == "openvino"


@pytest.mark.parametrize("processor", [frozenset()], indirect=True)
def test_without_a_compiler_the_build_says_what_it_would_gain(
    processor: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    lines: list[str] = []
    assert choices(load_recipe("demo-large"), lines) == ("openvino", "openvino")
    assert len(lines) == 1 and "apt install g++" in lines[0]


@needs_compiler
@pytest.mark.parametrize("processor", [frozenset()], indirect=True)
def test_an_engine_says_whose_products_it_has(processor: None, tmp_path: Path) -> None:
    recipe = load_recipe("demo")
    built = build_engines(recipe, tmp_path, lambda line: None)
    for role in ("draft", "target"):
        engine = json.loads((Path(built[role]) / "engine.json").read_text(encoding="utf-8"))
        assert engine["linear"] == "draftproof"
        assert (Path(built[role]) / "operators.so").exists()
    again = build_engines(with_linear(recipe, "openvino", "openvino"), tmp_path, lambda line: None)
    assert again["built"] == ["draft", "target"]
