"""Tests of the LLM API's files: their keys exist, spelled as the version does, and the scripts start."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from build.recipe import load_recipe
from build.tensorrt_llm.llm_api import decoding_type, write_llm_api
from pipelines.errors import RecipeError
from tests.support.llm_arguments import LLM_ARGUMENTS, SERVE_OPTIONS, TRITON_CONFIG, violations
from tests.unit.tensorrt_llm.test_preflight import GPU_RECIPES, broken_pair, with_models

EVERYTHING = {"tp_size": 2, "kv_cache_dtype": "fp8", "kv_cache_free_gpu_mem_fraction": 0.8}


def documents(tmp_path: Path, version: str = "1.3.0", **recipe: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    broken_pair(tmp_path, recipe, {})
    paths = write_llm_api(load_recipe(tmp_path / "broken.yaml"), version, tmp_path / "run")
    return yaml.safe_load(paths["model"].read_text()), yaml.safe_load(paths["settings"].read_text())


@pytest.mark.parametrize("release", LLM_ARGUMENTS)
def test_both_files_hold_the_pair_in_keys_that_exist(release: str, tmp_path: Path) -> None:
    model, serve = documents(tmp_path, f"{release}.1", target={"tensorrt_llm": EVERYTHING})
    assert violations(model.pop("triton_config"), TRITON_CONFIG) == []
    assert violations(model, LLM_ARGUMENTS[release]) == []
    assert serve == {name: value for name, value in model.items() if name not in ("model", "backend")}
    assert model["model"] == str(tmp_path / "target")
    assert model["backend"] == "pytorch"
    assert serve["tensor_parallel_size"] == 2
    assert serve["disable_overlap_scheduler"] is True
    assert serve["kv_cache_config"]["dtype"] == "fp8"
    assert serve["kv_cache_config"]["free_gpu_memory_fraction"] == 0.8
    speculation = serve["speculative_config"]
    assert speculation["max_draft_len"] == 8
    assert speculation["speculative_model_dir"] == str(tmp_path / "draft")


@pytest.mark.parametrize("name", GPU_RECIPES)
def test_every_recipe_is_rendered_for_both_generations(name: str, tmp_path: Path) -> None:
    recipe = with_models(load_recipe(name), tmp_path)
    for release, table in LLM_ARGUMENTS.items():
        paths = write_llm_api(recipe, f"{release}.0", tmp_path / "run")
        assert violations(yaml.safe_load(paths["settings"].read_text()), table) == []


@pytest.mark.parametrize(
    ("version", "spelling"),
    [
        ("1.3.0rc3", "DraftTarget"),
        ("1.3.0rc17", "Draft_Target"),
        ("1.4.0rc1", "Draft_Target"),
    ],
)
def test_the_spelling_follows_the_version(version: str, spelling: str, tmp_path: Path) -> None:
    assert decoding_type(version) == spelling
    assert documents(tmp_path, version)[1]["speculative_config"]["decoding_type"] == spelling


@pytest.mark.parametrize("version", ["1.2.1", "1.5.0", "unknown"])
def test_a_version_that_nobody_read_is_refused(version: str) -> None:
    with pytest.raises(
        RecipeError,
        match=f"TensorRT-LLM {version} is not known; known: 1.3 and 1.4; .*llm_args.py",
    ):
        decoding_type(version)


def words_of(script: Path) -> list[str]:
    """The command that a script runs, after ``exec``."""
    text = script.read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.startswith("exec ")]
    assert len(lines) == 1
    return shlex.split(lines[0])[1:]


def test_trtllm_serve_is_started_with_options_that_it_has(tmp_path: Path) -> None:
    broken_pair(tmp_path, {}, {})
    paths = write_llm_api(load_recipe(tmp_path / "broken.yaml"), "1.3.0", tmp_path / "a run")
    program, model, *options, more = words_of(paths["serve"])
    assert (program, model, more) == ("trtllm-serve", str(tmp_path / "target"), "$@")
    given = dict(zip(options[::2], options[1::2], strict=True))
    assert set(given) <= set(SERVE_OPTIONS)
    assert given == {"--host": "127.0.0.1", "--extra_llm_api_options": str(paths["settings"])}


def test_a_tensorrt_llm_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="LLM API cannot load"):
        write_llm_api(load_recipe("demo"), "1.3.0", tmp_path)
