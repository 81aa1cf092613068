"""A pair whose target has experts: what it reads, what is refused, and what memory it takes."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.quality.engines import compile_network
from build.checkpoints.tensor_file import Tensor
from build.engines import build_engines, gains_from_own_products
from build.memory import num_parameters
from build.networks.source import open_network
from build.preflight import check_recipe
from build.recipe import Recipe
from pipelines.errors import CheckpointError, EngineBuildError, RecipeError
from tests.golden.families import save_family
from tests.support.compiler import needs_compiler
from tests.support.hugging_face_checkpoints import (
    change_config,
    change_weights,
    make_hugging_face,
    pair_recipe,
)

MIXTURE = "qwen3_moe"  # 16 experts, 4 of them for a token; the second of four layers is dense
MIXTURES = pytest.mark.parametrize("name", [MIXTURE, "mixtral", "olmoe", "qwen2_moe", "qwen3_5_moe_text"])


def mixture_recipe(folder: Path, draft: str = "draft") -> Recipe:
    make_hugging_face(folder / "draft", vocab_size=512)
    save_family(MIXTURE, folder / "target")
    shutil.copy(folder / "draft" / "tokenizer.json", folder / "target")
    change_config(folder / "target", eos_token_id=0)
    sections = {
        role: {"checkpoint": str(folder / name)}
        for role, name in {"draft": draft, "target": "target"}.items()
    }
    return pair_recipe(folder, **sections)


@pytest.mark.parametrize("draft", ["draft", "target"])
def test_a_mixture_is_a_target_and_a_draft(draft: str, tmp_path: Path) -> None:
    recipe = mixture_recipe(tmp_path, draft)
    _, target = check_recipe(recipe)
    config = target.network.config
    assert [layer.has_experts for layer in config.layers] == [True, False, True, True]
    assert gains_from_own_products(recipe.target, config), "whatever the processor"


def test_experts_with_products_of_openvino_are_refused(tmp_path: Path) -> None:
    recipe = mixture_recipe(tmp_path)
    recipe = replace(recipe, target=replace(recipe.target, linear="openvino"))
    with pytest.raises(RecipeError, match="experts are always multiplied by products of our own"):
        build_engines(recipe, tmp_path / "engines")


def test_without_a_compiler_nothing_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = mixture_recipe(tmp_path)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EngineBuildError, match=r"cannot be compiled.* unless the network has experts"):
        build_engines(recipe, tmp_path / "engines")
    assert not list((tmp_path / "engines").glob("*/*/engine.json"))


@MIXTURES
def test_its_parameters_are_counted(name: str, tmp_path: Path) -> None:
    save_family(name, tmp_path)
    network = open_network(tmp_path).read()
    layers = [network.layer(index) for index in range(4)]
    stored = sum(linear.weight.data.size for layer in layers for linear in layer.linears())
    assert num_parameters(network.config)[0] == stored


@needs_compiler
def test_a_step_reads_the_chosen_experts(tmp_path: Path) -> None:
    save_family(MIXTURE, tmp_path / "checkpoint")
    network = open_network(tmp_path / "checkpoint").read()
    engine = compile_network(tmp_path / "engine", network, "none")
    layers = [network.layer(index) for index in range(4)]
    experts = sum(linear.bytes_per_step for layer in layers if layer.router for linear in layer.mlp())
    routers = sum(layer.router.bytes_per_step for layer in layers if layer.router)
    all_others = sum(linear.bytes_per_step for layer in layers for linear in layer.linears()) - experts
    norms = network.final_norm.nbytes + sum(norm.nbytes for layer in layers for norm in layer.norms())
    head = network.lm_head.bytes_per_step
    read = experts / 4 + all_others + routers + norms + head
    assert engine.config.weight_bytes_per_step == read
    assert engine.config.linear == "draftproof", "experts read their weights at each step"
    described = json.loads((tmp_path / "engine" / "engine" / "engine.json").read_text(encoding="utf-8"))
    assert described["num_parameters"] > read / 4, "all experts are held"


def test_experts_that_are_stacked_already_are_the_same(tmp_path: Path) -> None:
    save_family(MIXTURE, tmp_path)
    expected = open_network(tmp_path).read().layer(2)

    def stack(tensors: dict[str, Any]) -> None:
        for layer in (0, 2, 3):
            experts = f"model.layers.{layer}.mlp.experts."
            each = {
                name: np.stack([tensors.pop(f"{experts}{index}.{name}.weight").data for index in range(16)])
                for name in ("gate_proj", "up_proj", "down_proj")
            }
            gate_up = np.concatenate([each["gate_proj"], each["up_proj"]], axis=1)
            for name, data in {"gate_up_proj": gate_up, "down_proj": each["down_proj"]}.items():
                tensors[f"{experts}{name}"] = Tensor("F32", data.shape, data)

    change_weights(tmp_path, stack)
    found = open_network(tmp_path).read().layer(2)
    for one, other in zip(found.mlp(), expected.mlp(), strict=True):
        np.testing.assert_array_equal(one.weight.data, other.weight.data)


def test_experts_in_several_forms_are_refused(tmp_path: Path) -> None:
    save_family(MIXTURE, tmp_path)

    def round_one(tensors: dict[str, Any]) -> None:
        name = "model.layers.0.mlp.experts.3.up_proj.weight"
        tensors[name] = type(tensors[name]).from_float32(tensors[name].to_float32(), "BF16")

    change_weights(tmp_path, round_one)
    with pytest.raises(CheckpointError, match=r"layers\.0\.mlp\.experts have 3 forms"):
        open_network(tmp_path).read().layer(0)
