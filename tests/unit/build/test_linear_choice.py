"""Tests of whose products an engine gets, by processor, compiler, weights and recipe."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from build.engines import build_engines, gains_from_own_products
from build.preflight import check_recipe
from build.recipe import Recipe, load_recipe
from pipelines.available_resources import processor_flags
from tests.support.compiler import needs_compiler

NARROW = frozenset({"avx", "avx2", "fma", "f16c"})


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr("pipelines.available_resources.processor_flags", lambda: request.param)


on_a_narrow_processor = pytest.mark.parametrize("processor", [NARROW], indirect=True)


@pytest.fixture
def recipe() -> Recipe:
    """Return the demonstration pair as it was trained, whose engines are small."""
    return with_target(load_recipe("demo"), growth=None)


def with_target(recipe: Recipe, **keys: Any) -> Recipe:
    return dataclasses.replace(recipe, target=dataclasses.replace(recipe.target, **keys))


def built(recipe: Recipe, folder: Path) -> tuple[dict[str, str], list[str]]:
    """Return whose products draft and target got, and the lines that were reported."""
    lines: list[str] = []
    paths = build_engines(recipe, folder, lines.append)
    found = {}
    for role in ("draft", "target"):
        engine = json.loads((Path(paths[role]) / "engine.json").read_text(encoding="utf-8"))
        assert (Path(paths[role]) / "operators.so").exists() == (engine["linear"] == "draftproof")
        found[role] = engine["linear"]
    return found, lines


@pytest.mark.parametrize(
    ("processor", "gains"),
    [
        (NARROW, True),
        (NARROW | {"avx_vnni"}, False),
        (NARROW | {"avx512f"}, False),
        (NARROW | {"avx512f", "avx512_vnni"}, False),
        (frozenset({"avx"}), False),
    ],
    indirect=["processor"],
)
def test_only_processors_with_avx2_alone_gain(processor: None, gains: bool, recipe: Recipe) -> None:
    config = check_recipe(recipe)[1].network.config
    assert gains_from_own_products(recipe.target, config) == gains
    assert gains_from_own_products(with_target(recipe, quantization="int4").target, config)


@on_a_narrow_processor
@pytest.mark.parametrize(
    ("quantization", "gains"), [("int8", True), ("int4", True), ("none", False), ("checkpoint", False)]
)
def test_only_integers_that_the_build_makes_are_ours(
    processor: None, quantization: str, gains: bool, recipe: Recipe
) -> None:
    config = check_recipe(recipe)[1].network.config
    engine = with_target(recipe, quantization=quantization).target
    assert gains_from_own_products(engine, config) == gains
    awq = dataclasses.replace(config, quant_algo="awq", quant_bits=4, group_size=128)
    assert gains_from_own_products(engine, awq) == gains
    for key, value in {"quant_algo": "fp8", "quant_bits": 8, "group_size": 16}.items():
        assert not gains_from_own_products(engine, dataclasses.replace(awq, **{key: value}))
    is_exact = gains_from_own_products(engine, dataclasses.replace(config, quant_algo="gguf"))
    assert is_exact == (quantization != "none")


@needs_compiler
@pytest.mark.parametrize(
    ("processor", "keys", "draft", "target"),
    [
        (NARROW, {}, "draftproof", "draftproof"),
        (NARROW, {"linear": "openvino"}, "draftproof", "openvino"),
        (NARROW | {"avx_vnni"}, {"linear": "draftproof"}, "openvino", "draftproof"),
        (
            NARROW,
            {"linear": "draftproof", "quantization": "none", "lm_head": "checkpoint"},
            "draftproof",
            "openvino",
        ),
    ],
    indirect=["processor"],
    ids=["what is faster", "what the recipe says", "whatever the processor", "floats stay"],
)
def test_a_recipe_may_say_whose_products_it_gets(
    processor: None, keys: dict[str, Any], draft: str, target: str, recipe: Recipe, tmp_path: Path
) -> None:
    assert built(with_target(recipe, **keys), tmp_path)[0] == {"draft": draft, "target": target}


@on_a_narrow_processor
def test_without_a_compiler_the_build_says_what_it_would_gain(
    processor: None, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    found, lines = built(recipe, tmp_path)
    assert found == {"draft": "openvino", "target": "openvino"}
    assert sum("apt install g++" in line for line in lines) == 2


@needs_compiler
@on_a_narrow_processor
def test_engines_that_exist_need_no_compiler(
    processor: None, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built(recipe, tmp_path)
    monkeypatch.setenv("PATH", "")
    found, lines = built(recipe, tmp_path)
    assert found == {"draft": "draftproof", "target": "draftproof"}
    assert not any("warning" in line for line in lines)


def test_the_flags_of_a_processor_are_those_of_the_kernel(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nflags\t\t: fpu avx2 avx_vnni\n\nprocessor\t: 1\nflags\t\t: fpu\n")
    assert processor_flags(file) == {"fpu", "avx2", "avx_vnni"}
    file.write_text("model name\t: none\n")
    assert processor_flags(file) == frozenset()
