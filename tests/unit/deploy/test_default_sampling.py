"""Tests of how requests without sampling parameters are sampled: who decides, and what a person is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from build.recipe import DefaultSampling, load_recipe, parse_recipe
from build.rendering.rendered_pair import RenderedPair
from build.repository import launch_of
from pipelines.configuration import load_yaml
from pipelines.deploy.served_files import ServedFiles
from pipelines.deploy.triton.launch import Launch
from pipelines.errors import RecipeError
from pipelines.front_door.endpoints.completions import CompletionBody
from pipelines.front_door.requests.fields import parse_body
from pipelines.front_door.requests.sampling import sampling_request
from pipelines.front_door.served_model import ServedModel
from tests.support.tiny_engines import DEMO_TOKENIZER

FILES = ServedFiles("m", "0" * 64, 512, 24, 0, DEMO_TOKENIZER.read_text(), None, {})
QWEN = {"temperature": 0.7, "top_p": 0.8, "top_k": 20}
CHECKPOINT = {"temperature": 0.6, "repetition_penalty": 1.05}


def served(
    tmp_path: Path, option: str, of_recipe: dict[str, Any], of_checkpoint: dict[str, Any]
) -> ServedFiles:
    """Return what a front door reads of a server with these settings."""
    recipe = load_recipe("demo")
    serving = replace(recipe.serving, default_sampling=DefaultSampling(**of_recipe))
    launch_of(replace(recipe, serving=serving), None, DefaultSampling.of_option(option)).write(tmp_path)
    chosen = Launch.read(tmp_path).default_sampling
    files = replace(FILES, sampling={**chosen, **({"checkpoint": of_checkpoint} if of_checkpoint else {})})
    return ServedFiles.of_wire(files.to_wire(), "a:1")


def test_a_request_comes_before_the_option_the_recipe_the_checkpoint_and_openai(tmp_path: Path) -> None:
    files = served(tmp_path, "temperature=0.5,min_p=0", QWEN, CHECKPOINT)
    assert files.default_sampling == {
        "temperature": (0.5, "serve"),
        "top_p": (0.8, "recipe"),
        "top_k": (20, "recipe"),
        "min_p": (0, "serve"),
        "repetition_penalty": (1.05, "checkpoint"),
    }
    model = ServedModel.of(files)
    body = parse_body(CompletionBody, b'{"prompt": "a", "temperature": 0.1, "top_k": 3}')
    asked = sampling_request(body, model.defaults, 9)
    assert (asked.temperature, asked.top_k, asked.top_p, asked.repetition_penalty) == (0.1, 3, 0.8, 1.05)
    asked.check()


@pytest.mark.parametrize(
    ("option", "of_recipe", "of_checkpoint", "said"),
    [
        ("", QWEN, {}, "temperature 0.7, top_p 0.8, top_k 20 (recipe)"),
        ("temperature=0", QWEN, CHECKPOINT, "temperature 0 (serve), top_p 0.8, top_k 20 (recipe), "),
        ("", {}, {}, "temperature 1 (neither the recipe nor the checkpoint sets one)"),
        (
            "",
            {},
            {"top_k": 64},
            "temperature 1 (neither the recipe nor the checkpoint sets one), top_k 64 (che",
        ),
    ],
)
def test_a_line_says_what_counts_and_why(
    option: str, of_recipe: dict[str, Any], of_checkpoint: dict[str, Any], said: str, tmp_path: Path
) -> None:
    line = served(tmp_path, option, of_recipe, of_checkpoint).sampling_line()
    assert line.startswith(f"requests that send no temperature are sampled at {said}")


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("temprature=0.7", r"did you mean (serving\.default_sampling\.)?temperature\?"),
        ("temperature", "temperature"),
        ("temperature=warm", "temperature"),
        ("temperature=nan", "temperature=nan is wrong: it must be a finite number"),
        ("temperature=-1", "temperature is out of range.*at least 0"),
        ("top_p=0", "top_p is out of range.*above 0"),
        ("top_k=1.5", "top_k"),
        ("top_k=4294967296", "top_k"),
    ],
)
def test_what_a_request_may_not_send_is_no_default(option: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=reason):
        DefaultSampling.of_option(option)
    name, _, value = option.partition("=")
    path = Path("build/recipes/demo.yaml")
    document: Any = load_yaml(path, RecipeError, "")
    document["serving"]["default_sampling"] = {name: float(value) if value not in ("", "warm") else "warm"}
    with pytest.raises(RecipeError, match=reason):
        parse_recipe(document, path)


def test_a_pair_is_the_same_pair_however_requests_are_sampled(tmp_path: Path) -> None:
    engine: Any = SimpleNamespace(manifest={"fingerprint": "f"})
    recipe = load_recipe("demo")
    serving = replace(recipe.serving, default_sampling=DefaultSampling(temperature=0.5))
    pairs = [
        RenderedPair(each, engine, engine, tmp_path) for each in (recipe, replace(recipe, serving=serving))
    ]
    assert pairs[0].fingerprint == pairs[1].fingerprint


@pytest.mark.parametrize("name", ["qwen2-5-coder-cpu", "qwen2-5-coder-head"])
def test_shipped_recipes_have_what_the_publisher_recommends_and_their_files_lack(name: str) -> None:
    assert load_recipe(name).serving.default_sampling.values == QWEN
