"""Tests of the choice of prompts: whose they are, how many, and which are too long."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from build.recipe import RECIPES, load_recipe
from pipelines.command_line.general_prompts import GENERAL, general_prompts
from pipelines.command_line.prompt_choice import choose_prompts
from pipelines.command_line.prompt_files import read_prompts
from pipelines.command_line.prompt_lengths import encode_prompts, fitting_prompts, read_tokenizer
from pipelines.command_line.prompts import Prompt, Prompts
from pipelines.errors import EngineLoadError, InvalidRequestError, RecipeError
from pipelines.validation.size import MOST_PROMPTS
from tests.support.demo_prompts import DEMO_PROMPTS
from tests.support.tiny_engines import DEMO_TOKENIZER


def made(**counts: int) -> Prompts:
    sets = {
        name: tuple(Prompt(f"{name}-{number}", f"{name} {number}") for number in range(count))
        for name, count in counts.items()
    }
    return Prompts("made", sets)


@pytest.mark.parametrize("recipe", ["demo", "demo-large"])
def test_the_demonstrations_prompts_are_those_of_its_recipes(recipe: str) -> None:
    chosen = choose_prompts(None, recipe)
    assert chosen.source == "engines/demo_pair/prompts"
    assert list(chosen.sets) == ["code", "mixed", "adversarial", "repetitive"]
    assert load_recipe(recipe).prompts_path is not None
    assert choose_prompts(load_recipe(recipe).prompts_path, "").sha256 == chosen.sha256


@pytest.mark.parametrize("recipe", ["qwen3-8b-int8", "qwen3-8b-int8-h200-141gb", "no-such-recipe", ""])
def test_another_recipe_gets_general_prompts(recipe: str) -> None:
    assert choose_prompts(None, recipe) == general_prompts()
    assert choose_prompts(None, recipe).source == GENERAL


def test_a_recipe_names_prompts_beside_itself_and_an_option_beats_it(tmp_path: Path) -> None:
    text = (RECIPES / "demo.yaml").read_text().replace("../../engines/demo_pair/prompts", "mine.txt")
    recipe = tmp_path / "own.yaml"
    recipe.write_text(text)
    with pytest.raises(RecipeError, match=r"own\.yaml: prompts='mine\.txt' is no file or folder"):
        load_recipe(recipe)
    (tmp_path / "mine.txt").write_text("my text")
    assert load_recipe(recipe).prompts_path == tmp_path / "mine.txt"
    assert [prompt.text for prompt in choose_prompts(None, str(recipe)).all] == ["my text"]
    (tmp_path / "other.txt").write_text("other text")
    assert choose_prompts(tmp_path / "other.txt", str(recipe)).all[0].text == "other text"


def test_a_recipe_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"absent\.yaml: cannot be read"):
        choose_prompts(None, str(tmp_path / "absent.yaml"))


@pytest.mark.parametrize("prompts", [general_prompts(), read_prompts(DEMO_PROMPTS)], ids=["general", "demo"])
def test_there_are_enough_prompts_for_a_release_and_a_benchmark(prompts: Prompts) -> None:
    assert len(prompts.all) >= MOST_PROMPTS
    assert all(len(of_set) >= 32 for of_set in prompts.sets.values())


def test_prompts_are_drawn_from_all_sets_in_turns() -> None:
    drawn = made(a=5, b=2).draw(5)
    assert [prompt.prompt_id for prompt in drawn.all] == ["a-0", "b-0", "a-1", "b-1", "a-2"]
    assert Counter(prompt.prompt_id[0] for prompt in made(a=5, b=2).draw(99).all) == {"a": 5, "b": 2}
    with pytest.raises(InvalidRequestError, match=r"too few prompts, 8 are needed: made has 7; add"):
        made(a=5, b=2).draw(9, least=8)


class ServerOf:
    """A server with these parameters, as far as ``fitting_prompts`` asks."""

    def __init__(self, parameters: dict[str, str]) -> None:
        self.parameters = parameters

    def model_parameters(self, model: str) -> dict[str, str]:
        assert model == "speculative"
        return self.parameters


def fitting(prompts: Prompts, **parameters: str) -> Prompts:
    client: Any = ServerOf(parameters)
    return fitting_prompts(prompts, client, num_more=10)


def test_prompts_too_long_for_the_server_are_counted_and_left_out() -> None:
    prompts = Prompts("made", {"a": (Prompt("short", "x = 1"), Prompt("long", "import os\n" * 50))})
    engine = str(DEMO_TOKENIZER.parent)
    counted = fitting(prompts, target_engine_dir=engine, max_seq_len="1000")
    short, long = (prompt.num_tokens or 0 for prompt in counted.all)
    assert 0 < short < 10 < long and counted.num_tokens == short + long
    exact = fitting(prompts, target_engine_dir=engine, max_seq_len=str(long + 10))
    assert (exact.all, exact.notes) == (counted.all, ())
    kept = fitting(prompts, target_engine_dir=engine, max_seq_len=str(long + 9))
    assert [prompt.prompt_id for prompt in kept.all] == ["short"]
    assert f"too long and left out: 1; the longest has {long} tokens, 10 more are needed" in kept.notes[0]


def test_without_the_tokenizer_lengths_are_unknown_and_this_is_said(tmp_path: Path) -> None:
    found = fitting(made(a=1), target_engine_dir=str(tmp_path), max_seq_len="5")
    assert found.num_tokens is None and "not on this machine" in found.notes[0]


def test_truncation_and_padding_of_a_tokenizer_are_ignored(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(DEMO_TOKENIZER))
    whole = tokenizer.encode("import os\n" * 9).ids
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    prompts = (Prompt("a", "import os\n" * 9),)
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_str())
    assert encode_prompts(prompts, read_tokenizer(tmp_path)) == {"a": tuple(whole)}
    assert encode_prompts(prompts, read_tokenizer(tmp_path), 3) == {"a": tuple(whole[:3])}
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(EngineLoadError, match="tokenizer"):
        read_tokenizer(tmp_path)
