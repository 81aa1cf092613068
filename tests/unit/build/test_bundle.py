"""Tests of bundles for the PyTorch backend: what decides an answer is pinned, and a change is found."""

from __future__ import annotations

import copy
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from build import bundle
from build.built_pair import build_pair
from build.engines import build_engines, check_engines
from build.llm_api import exported_quantization
from build.recipe import Recipe, load_recipe
from pipelines.errors import CheckpointError, EngineLoadError, RecipeError
from tests.support.hugging_face_checkpoints import make_hugging_face
from tests.support.modelopt_in_process import worker
from tests.unit.tensorrt_llm.test_preflight import broken_pair

CONTAINER = "nvcr.io/nvidia/tensorrt-llm/release:1.4.0rc1@sha256:" + "0" * 64


def recipe_of(tmp_path: Path, quantization: str = "none", container: str = CONTAINER) -> Recipe:
    sections: dict[str, Any] = {role: {"quantization": quantization} for role in ("draft", "target")}
    broken_pair(tmp_path, sections, {})
    path = tmp_path / "broken.yaml"
    path.write_text(path.read_text() + f"tensorrt_llm: {{version: 1.4.0rc1, container: '{container}'}}\n")
    return load_recipe(path)


def test_a_bundle_pins_version_container_settings_and_both_checkpoints(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path)
    made = build_engines(recipe, tmp_path / "engines", print)
    pinned = json.loads(Path(made["bundle"]).read_text())
    assert (pinned["version"], pinned["container"]) == ("1.4.0rc1", CONTAINER)
    assert set(pinned["settings"]["files"]) == {
        *("model.yaml", "triton.sh", "trtllm-serve.yaml", "trtllm-serve.sh"),
    }
    assert {"config.json", "tokenizer.json"} <= set(pinned["target"]["files"])
    found = check_engines(recipe, tmp_path / "engines")
    assert found["damaged"] == [] and len(found["whole"]) >= 8


@pytest.mark.parametrize("damage", ["changed", "missing"])
@pytest.mark.parametrize("of", ["target", "settings"])
def test_damage_is_found(tmp_path: Path, of: str, damage: str) -> None:
    recipe = recipe_of(tmp_path)
    made = build_engines(recipe, tmp_path / "engines", print)
    path = Path(made["settings"]) if of == "settings" else tmp_path / "target" / "config.json"
    path.write_text(path.read_text() + " ") if damage == "changed" else path.unlink()
    assert check_engines(recipe, tmp_path / "engines")["damaged"] == [str(path)]


def test_the_files_themselves_are_read_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_of(tmp_path)
    build_engines(recipe, tmp_path / "engines", print)
    config, added = tmp_path / "draft" / "config.json", tmp_path / "target" / "added.jinja"
    known = bundle.file_digests([config])
    monkeypatch.setattr(bundle, "file_digests", lambda paths: known)
    config.write_text(config.read_text() + " ")
    added.touch()
    assert check_engines(recipe, tmp_path / "engines")["damaged"] == [str(config), str(added)]


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("1.4.0rc1,", "1.4.0rc2,", "version 1.4.0rc1"),
        ("0" * 64, "1" * 64, f"container {CONTAINER}"),
        ("max_batch_size: ", "max_batch_size: 1", "settings "),
    ],
)
def test_a_recipe_that_asks_for_something_else_is_told(
    tmp_path: Path, old: str, new: str, named: str
) -> None:
    build_engines(recipe_of(tmp_path), tmp_path / "engines", print)
    path = tmp_path / "broken.yaml"
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(EngineLoadError, match=rf"something else.*{named}.*run draftproof engines"):
        check_engines(load_recipe(path), tmp_path / "engines")


@pytest.mark.parametrize("content", ["{}", "[]", '{"format": 2}', '{"format": 1, "draft": []}', "no JSON"])
def test_a_bundle_that_cannot_be_understood_has_a_remedy(tmp_path: Path, content: str) -> None:
    recipe = recipe_of(tmp_path)
    made = build_engines(recipe, tmp_path / "engines", print)
    Path(made["bundle"]).write_text(content)
    with pytest.raises(EngineLoadError, match=r"bundle\.json.*run draftproof engines"):
        check_engines(recipe, tmp_path / "engines")


AWQ = {"quantization_config": {"quant_method": "awq"}}


@pytest.mark.parametrize(
    ("config", "exported", "name"),
    [
        (AWQ, None, "awq"),
        ({"text_config": AWQ}, None, "awq"),
        (AWQ, {"quantization": {"quant_algo": "FP8"}}, "FP8"),
        ({}, {"quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}}, "none"),
        ({"quantization_config": None}, None, "none"),
        ({}, {}, None),
        ({}, {"quantization": {"quant_algo": 8}}, None),
        ({}, [], None),
        ({"quantization_config": {"bits": 4}}, None, None),
    ],
)
def test_what_a_checkpoint_says_of_its_quantization(
    tmp_path: Path, config: Any, exported: Any, name: str | None
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    if exported is not None:
        (tmp_path / "hf_quant_config.json").write_text(json.dumps(exported))
    with nullcontext() if name else pytest.raises(CheckpointError):
        assert exported_quantization(tmp_path) == name


def test_an_empty_checkpoint_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path)
    for path in (tmp_path / "draft").iterdir():
        path.unlink()
    with pytest.raises(CheckpointError, match=r"draft/config\.json"):
        build_engines(recipe, tmp_path / "engines", print)
    assert not (tmp_path / "engines").exists()


def test_what_would_not_be_served_as_it_says_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="container by digest"):
        build_engines(recipe_of(tmp_path, container="nvcr.io/nvidia/tensorrt-llm/release:1.4.0rc1"), tmp_path)
    with pytest.raises(RecipeError, match=r"draft\.quantization=fp8.*export_hf_checkpoint"):
        build_engines(recipe_of(tmp_path, quantization="fp8"), tmp_path)
    with pytest.raises(EngineLoadError, match=r"bundle\.json: cannot be read"):
        check_engines(recipe_of(tmp_path), tmp_path / "none")


def test_our_server_names_nvidias(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("build.built_pair.ENGINES", tmp_path / "engines")
    monkeypatch.setattr("build.built_pair.check_prompts", lambda recipe: None)
    with pytest.raises(RecipeError, match=r"run sh .*trtllm-serve\.sh"):
        build_pair(recipe_of(tmp_path), print)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # from ModelOpt and its libraries
def test_an_fp8_checkpoint_as_modelopt_exports_it_is_named_so(tmp_path: Path) -> None:
    modelopt = worker()
    from modelopt.torch.export import export_hf_checkpoint

    recipe = recipe_of(tmp_path, quantization="checkpoint")
    source = make_hugging_face(tmp_path / "source")
    model = modelopt.load_model(source)
    ids = modelopt.torch.arange(16).reshape(2, 8)
    config = copy.deepcopy(modelopt.quantization_config("fp8", "model"))
    modelopt.mtq.quantize(model, config, lambda model: model(input_ids=ids, use_cache=False))
    export_hf_checkpoint(model, export_dir=tmp_path / "target")
    made = build_engines(recipe, tmp_path / "engines", print)
    pinned = json.loads(Path(made["bundle"]).read_text())
    assert pinned["target"]["quantization"] == "FP8"
    assert any(name.endswith(".safetensors") for name in pinned["target"]["files"])
