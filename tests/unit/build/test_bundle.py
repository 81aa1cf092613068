"""Tests of bundles for the PyTorch backend: what decides an answer is pinned, and a change is found."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from build.built_pair import build_pair
from build.engines import build_engines, check_engines
from build.recipe import Recipe, load_recipe
from pipelines.errors import EngineLoadError, RecipeError
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
    bundle = json.loads(Path(made["bundle"]).read_text())
    assert (bundle["version"], bundle["container"]) == ("1.4.0rc1", CONTAINER)
    assert set(bundle["settings"]["files"]) == {
        *("model.yaml", "triton.sh", "trtllm-serve.yaml", "trtllm-serve.sh"),
    }
    assert {"config.json", "tokenizer.json"} <= set(bundle["target"]["files"])
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


def test_what_would_not_be_served_as_it_says_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="container by digest"):
        build_engines(recipe_of(tmp_path, container="nvcr.io/nvidia/tensorrt-llm/release:1.4.0rc1"), tmp_path)
    with pytest.raises(RecipeError, match=r"draft\.quantization=fp8.*export_hf_checkpoint"):
        build_engines(recipe_of(tmp_path, quantization="fp8"), tmp_path)
    with pytest.raises(EngineLoadError, match="no bundle to check"):
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
    bundle = json.loads(Path(made["bundle"]).read_text())
    assert bundle["target"]["quantization"] == "FP8"
    assert any(name.endswith(".safetensors") for name in bundle["target"]["files"])
