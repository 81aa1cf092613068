"""Tests of the LLM API's files: their keys exist, spelled as the version does, and the scripts start."""

from __future__ import annotations

import importlib.util
import json
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from build.recipe import load_recipe
from build.tensorrt_llm.llm_api import decoding_type, write_llm_api
from pipelines.errors import RecipeError
from tests.support.llm_arguments import DRAFTS, LLM_ARGUMENTS, SERVE_OPTIONS, TRITON_CONFIG, violations
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
    assert list(serve)[-1] == "speculative_config", "the guide deletes it and what follows to get the control"


def test_what_1_4_does_by_default_is_set_by_name(tmp_path: Path) -> None:
    _, serve = documents(tmp_path, "1.4.0rc1")
    assert serve["kv_cache_config"]["use_kv_cache_manager_v2"] is True
    assert serve["cache_transceiver_config"] == {"transceiver_runtime": "PYTHON"}
    assert serve["telemetry_config"] == {"disabled": True}
    assert serve["speculative_config"]["enable_penalty"] is True
    assert "allow_advanced_sampling" not in serve["speculative_config"], "a deprecated no-op"


HEAD = {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 32000, "num_hidden_layers": 1}
PARD = {"pard_token": 128255, "spd_type": "pard"}
LENGTH = 8
DRAFT_FORMS: list[tuple[str, dict[str, Any], int, dict[str, Any]]] = [
    ("Draft_Target", {}, 1, {}),
    ("PARD", PARD, 1, {"mask_token_id": 128255}),
    ("Eagle3", HEAD, 1, {"use_dynamic_tree": False}),
    (
        "Eagle3",
        HEAD,
        4,
        {"use_dynamic_tree": True, "dynamic_tree_max_topK": 4, "max_total_draft_tokens": 4 * LENGTH},
    ),
]


def settings_of_draft(tmp_path: Path, version: str, config: dict[str, Any], top_k: int) -> dict[str, Any]:
    section = {"tensorrt_llm": {"draft_tree_top_k": top_k}, "draft": {"quantization": "none"}}
    broken_pair(tmp_path, section, {"draft": config})
    paths = write_llm_api(load_recipe(tmp_path / "broken.yaml"), version, tmp_path / "run")
    settings: dict[str, Any] = yaml.safe_load(paths["settings"].read_text())
    return settings


@pytest.mark.parametrize(("kind", "config", "top_k", "special"), DRAFT_FORMS)
def test_the_form_of_a_draft_follows_from_its_configuration(
    kind: str, config: dict[str, Any], top_k: int, special: dict[str, Any], tmp_path: Path
) -> None:
    settings = settings_of_draft(tmp_path, "1.4.0rc1", config, top_k)
    assert violations(settings, {**LLM_ARGUMENTS["1.4"], "speculative_config": DRAFTS[kind]}) == []
    assert settings["disable_overlap_scheduler"] is (kind == "Draft_Target")
    assert settings["speculative_config"] == {
        "decoding_type": kind,
        "max_draft_len": LENGTH,
        "speculative_model_dir": str(tmp_path / "draft"),
        **special,
        "enable_penalty": True,
    }


@pytest.mark.parametrize(
    ("version", "config", "top_k", "message"),
    [
        ("1.3.0", PARD, 1, "PARD drafts in TensorRT-LLM 1.3.0 is not known; known: 1.4"),
        ("1.3.0", HEAD, 4, "Eagle3 drafts in TensorRT-LLM 1.3.0"),
        ("1.4.0", {}, 4, "only a trained head grows a tree.*draft_tree_top_k=4.*Draft_Target; remove it"),
        ("1.4.0", PARD, 4, "only a trained head grows a tree.*PARD; remove it"),
    ],
)
def test_a_form_that_a_version_does_not_have_is_refused(
    version: str, config: dict[str, Any], top_k: int, message: str, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match=message):
        settings_of_draft(tmp_path, version, config, top_k)


def published_schema() -> Path | None:
    """Return the schema of the settings in an installed TensorRT-LLM, as in NVIDIA's image of 1.4."""
    found = importlib.util.find_spec("tensorrt_llm")
    folders = (found.submodule_search_locations or ()) if found else ()
    paths = [Path(folder) / "schemas" / "trtllm-serve-config.schema.json" for folder in folders]
    return next((path for path in paths if path.exists()), None)


@pytest.mark.skipif(published_schema() is None, reason="TensorRT-LLM 1.4 has the schema, in NVIDIA's image")
@pytest.mark.parametrize(("config", "top_k"), [form[1:3] for form in DRAFT_FORMS])
def test_the_published_schema_accepts_every_form(config: dict[str, Any], top_k: int, tmp_path: Path) -> None:
    schema = published_schema()
    assert schema is not None
    validator = jsonschema.Draft202012Validator(json.loads(schema.read_text()))
    validator.validate(settings_of_draft(tmp_path, "1.4.0rc1", config, top_k))


@pytest.mark.parametrize("name", GPU_RECIPES)
def test_every_recipe_is_rendered_for_both_generations(name: str, tmp_path: Path) -> None:
    recipe = with_models(load_recipe(name), tmp_path)
    for release, table in LLM_ARGUMENTS.items():
        paths = write_llm_api(recipe, f"{release}.0", tmp_path / "run")
        assert violations(yaml.safe_load(paths["settings"].read_text()), table) == []


@pytest.mark.parametrize(
    ("version", "spelling"),
    [("1.3.0rc3", "DraftTarget"), ("1.3.0rc17", "Draft_Target"), ("1.4.0rc1", "Draft_Target")],
)
def test_the_spelling_follows_the_version(version: str, spelling: str, tmp_path: Path) -> None:
    assert decoding_type(version) == spelling
    assert documents(tmp_path, version)[1]["speculative_config"]["decoding_type"] == spelling


@pytest.mark.parametrize("version", ["1.2.1", "1.5.0", "unknown"])
def test_a_version_that_nobody_read_is_refused(version: str) -> None:
    with pytest.raises(
        RecipeError, match=f"TensorRT-LLM {version} is not known; known: 1.3 and 1.4; .*llm_args.py"
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
