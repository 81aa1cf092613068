"""Tests of the strict recipe parser, whose errors suggest what was probably meant."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from build.recipe import RECIPES, load_recipe, parse_recipe
from pipelines.errors import RecipeError

DEMO = yaml.safe_load((RECIPES / "demo.yaml").read_text(encoding="utf-8"))
PATH = Path("some.yaml")


def changed(dotted: str, value: Any) -> Any:
    raw = copy.deepcopy(DEMO)
    *sections, key = dotted.split(".")
    place = raw
    for section in sections:
        place = place[section]
    if value is KeyError:
        del place[key]
    else:
        place[key] = value
    return raw


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_recipe_in_the_repository_is_valid(path: Path) -> None:
    recipe = load_recipe(path.stem)
    assert recipe.name == path.stem
    assert load_recipe(path) == recipe


@pytest.mark.parametrize(
    ("dotted", "value", "message"),
    [
        ("target.quantisation", "int8", "did you mean target.quantization?"),
        ("target.growth.layers", 3, "did you mean target.growth.num_layers?"),
        ("serving.max_batchsize", 3, "did you mean serving.max_batch_size?"),
        ("tarjet", {}, "did you mean target?"),
        ("serving.zzz", 3, "is unknown"),
        ("path", "x", "is unknown"),
        ("target.quantization", "int9", "did you mean int8?"),
        ("target.kv_cache.dtype", "float61", "did you mean float16?"),
        ("runtime", "tensorflow", "not one of the choices"),
        ("serving.max_batch_size", 0, "greater than 0"),
        ("serving.max_batch_size", "16", "max_batch_size='16'"),
        ("serving.max_batch_size", True, "max_batch_size=True"),
        ("serving.max_batch_size", 1.5, "max_batch_size=1.5"),
        ("target.checkpoint", 3, "wrong type"),
        ("prompts", "", "prompts=''"),
        ("prompts", ["a.txt"], "wrong type"),
        ("target.checkpoint", KeyError, "target.checkpoint"),
        ("target.growth.num_layers", KeyError, "target.growth.num_layers"),
        ("target", KeyError, "is missing"),
        ("draft", ["x"], "not a mapping"),
        ("name", "a/b", "letters, digits"),
        ("serving.num_draft_tokens", 9, "max_draft_len=8"),
        ("serving.num_draft_tokens", -1, "greater than or equal to 0"),
        ("serving.num_draft_tokens", "many", "a valid integer"),
        ("serving.num_draft_tokens", "adaptive", "docs/reference/recipe.md explains"),
        ("serving.num_draft_tokens", 2.0, "num_draft_tokens=2.0"),
        ("serving.max_draft_len", 0, "greater than 0"),
        ("serving.max_draft_len", -8, "greater than 0"),
        ("serving.max_draft_len", 512, "max_draft_len + 1 = 513"),
        ("serving.max_draft_len", 10**30, "max_seq_len=1024"),
        ("serving.max_num_tokens", 8, "max_draft_len + 1 = 9"),
        ("target.lm_head_rows", 9, "would give other answers"),
        ("draft.kv_cache.num_blocks", 32, "max_seq_len=1024"),
    ],
)
def test_mistakes_are_explained(dotted: str, value: Any, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(changed(dotted, value), PATH)
    error = caught.value
    assert message in str(error)
    assert "some.yaml" in error.message
    assert error.message and error.remedy


@pytest.mark.parametrize("raw", [None, [], "text", 3])
def test_a_recipe_is_a_mapping(raw: Any) -> None:
    with pytest.raises(RecipeError, match="not a mapping"):
        parse_recipe(raw, PATH)


def test_unknown_recipe_suggests_a_name() -> None:
    with pytest.raises(RecipeError, match="did you mean demo-large"):
        load_recipe("demo-lrge")
    with pytest.raises(RecipeError, match="there is no recipe"):
        load_recipe("somewhere/else.yaml")


def test_file_that_is_not_yaml(tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text("a: [1\nb", encoding="utf-8")
    with pytest.raises(RecipeError, match="cannot be read"):
        load_recipe(path)
