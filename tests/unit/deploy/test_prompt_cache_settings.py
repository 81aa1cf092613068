"""Tests of where the prompt cache of a server is, and how large it may become."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from build.recipe import load_recipe, parse_recipe
from build.rendering.rendered_pair import RenderedPair
from build.repository import with_prompt_cache
from pipelines.configuration import load_yaml
from pipelines.errors import RecipeError
from pipelines.triton.backend.parameters import ModelParameters
from pipelines.triton.engine.in_process_engines import opened_block_files
from tests.conftest import REPOSITORY_ROOT


def rendered(run: Path, folder: str = "", gigabytes: str = "", **of_recipe: Any) -> RenderedPair:
    recipe = load_recipe("demo")
    recipe = replace(recipe, serving=replace(recipe.serving, **of_recipe))
    engine: Any = SimpleNamespace(
        directory=Path("/e"),
        manifest={"fingerprint": "f", "files": {}},
        path=lambda name: Path(name),
        sha256=lambda name: "0",
    )
    num_kv_blocks = {"draft": 8, "target": 8}
    cached = with_prompt_cache(recipe, folder, gigabytes)
    return RenderedPair(cached, engine, engine, run, num_kv_blocks=num_kv_blocks)


@pytest.mark.parametrize(
    ("settings", "folder", "num_bytes"),
    [
        ({}, "/run/one/prompt_cache", ""),
        ({"prompt_cache_dir": "caches/shared"}, f"{REPOSITORY_ROOT}/caches/shared", ""),
        ({"prompt_cache_dir": "/b", "prompt_cache_gb": 2.5}, "/b", "2500000000"),
        ({"prompt_cache_dir": "/b", "prompt_cache_gb": 2.5, "folder": "/c", "gigabytes": "0"}, "/c", "0"),
    ],
)
def test_an_option_comes_before_the_recipe_and_that_before_the_default(
    settings: dict[str, Any], folder: str, num_bytes: str
) -> None:
    values = rendered(Path("/run/one"), **settings).values
    assert (values["prompt_cache_dir"], values["prompt_cache_bytes"]) == (folder, num_bytes)


def test_a_pair_is_the_same_pair_wherever_its_prompts_are_kept(tmp_path: Path) -> None:
    assert rendered(tmp_path).fingerprint == rendered(tmp_path, "/c", "3").fingerprint


@pytest.mark.parametrize("gigabytes", ["-1", "20GB", "nan", "inf"])
def test_a_size_is_a_number(gigabytes: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="prompt-cache-gb"):
        rendered(tmp_path, gigabytes=gigabytes)


def test_a_recipe_has_no_negative_size() -> None:
    path = load_recipe("demo").path
    document = load_yaml(path, RecipeError, "")
    document["serving"]["prompt_cache_gb"] = -1
    with pytest.raises(RecipeError, match="prompt_cache_gb"):
        parse_recipe(document, path)


def parameters(folder: Path, num_bytes: str) -> ModelParameters:
    return ModelParameters("m", {"prompt_cache_dir": str(folder), "prompt_cache_bytes": num_bytes})


def test_a_start_says_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = opened_block_files(parameters(tmp_path / "c", "3000000000"))
    assert files is not None
    files.writer.shutdown()
    assert f"start: the prompt cache {tmp_path}/c holds 0.0 GB of at most 3.0 GB\n" == capsys.readouterr().out
    default = opened_block_files(parameters(tmp_path / "c", ""))
    assert default is not None
    default.counted.result(10)
    assert 0 < default.limit_bytes <= 20 * 10**9
    assert opened_block_files(parameters(tmp_path / "d", "0")) is None
    assert not (tmp_path / "d").exists()


def test_a_folder_that_cannot_be_made_costs_the_cache_and_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert opened_block_files(parameters(tmp_path / "file" / "c", "")) is None
    assert "there is no prompt cache" in caplog.text


def test_a_folder_of_others_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(RecipeError, match=r"note\.txt"):
        opened_block_files(parameters(tmp_path, ""))
