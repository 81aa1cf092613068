"""Pairs whose target has recurrent layers or experts: what they need, what is refused, and their memory."""

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
from build.memory import EngineMemory, num_parameters, plan_memory
from build.networks.source import open_network
from build.preflight import check_recipe
from build.recipe import Recipe, Serving
from pipelines.engine_memory import MAX_LOGGED_ROWS, read_sizes, states_bytes
from pipelines.errors import CheckpointError, EngineBuildError, RecipeError
from tests.golden.families import save_family
from tests.support.compiler import needs_compiler
from tests.support.hugging_face_checkpoints import (
    change_config,
    change_weights,
    make_hugging_face,
    pair_recipe,
)

HYBRID = "qwen3_5_text"


def hybrid_recipe(folder: Path, draft: str = "draft", **serving: Any) -> Recipe:
    make_hugging_face(folder / "draft", vocab_size=512)
    save_family(HYBRID, folder / "target")
    shutil.copy(folder / "draft" / "tokenizer.json", folder / "target")
    change_config(folder / "target", eos_token_id=0)
    sections = {
        "draft": {"checkpoint": str(folder / draft), "attention": "draftproof"},
        "target": {"checkpoint": str(folder / "target"), "attention": "draftproof"},
    }
    return pair_recipe(folder, **sections, serving={"max_seq_len": 256, **serving})


def test_a_hybrid_is_a_target_and_no_draft(tmp_path: Path) -> None:
    _, target = check_recipe(hybrid_recipe(tmp_path))
    assert [layer.is_recurrent for layer in target.network.config.layers] == [True, True, True, False]
    recipe = hybrid_recipe(tmp_path, draft="target")
    for attention in ("draftproof", "openvino"):  # no setting makes it a draft
        with pytest.raises(RecipeError, match="the draft has recurrent layers"):
            check_recipe(replace(recipe, draft=replace(recipe.draft, attention=attention)))


def test_drafts_longer_than_the_log_are_refused(tmp_path: Path) -> None:
    check_recipe(hybrid_recipe(tmp_path, max_draft_len=MAX_LOGGED_ROWS - 1))
    with pytest.raises(RecipeError, match=f"max_draft_len={MAX_LOGGED_ROWS}"):
        check_recipe(hybrid_recipe(tmp_path, max_draft_len=MAX_LOGGED_ROWS))


def test_openvinos_attention_is_refused_and_try_writes_ours(tmp_path: Path) -> None:
    recipe = hybrid_recipe(tmp_path)
    with pytest.raises(RecipeError, match=r"cannot compute the target, which has recurrent layers"):
        check_recipe(replace(recipe, target=replace(recipe.target, attention="openvino")))
    with pytest.raises(EngineBuildError, match="recurrent layers"):
        compile_network(tmp_path / "engine", open_network(tmp_path / "target").read(), "none", "openvino")


@needs_compiler
def test_the_plan_counts_states_as_the_engine_allocates_them(tmp_path: Path) -> None:
    recipe = hybrid_recipe(tmp_path)
    draft, target = check_recipe(recipe)
    estimated = EngineMemory.of_network(target.network.config, recipe.target)
    dtype = recipe.target.kv_cache.dtype
    engine = compile_network(tmp_path / "engine", target.network.read(), "int8", "draftproof", dtype)
    _, block, slot = read_sizes(tmp_path / "engine" / "engine")
    assert (estimated.block, estimated.slot) == (block, slot)
    allocated = sum(
        tensor.get_size() // tensor.get_shape()[0]
        for name in ("state", "state_log")
        for tensor in (engine._network._request.get_tensor(f"{name}.{index}") for index in range(3))
    )
    assert slot == allocated == engine.config.state_bytes + MAX_LOGGED_ROWS * engine.config.log_bytes
    others = EngineMemory.of_network(draft.network.config, recipe.draft)
    plans = [plan_memory(estimated, others, Serving(max_batch_size=size), 8e9) for size in (2, 4)]
    assert [plan.states for plan in plans] == [states_bytes(slot, 2), states_bytes(slot, 4)]
    assert any("recurrent states of the target" in line for line in plans[0].lines())
    layers = map(target.network.read().layer, range(4))
    stored = sum(linear.weight.data.size for layer in layers for linear in layer.linears())
    assert num_parameters(target.network.config)[0] == stored


def test_a_model_that_also_sees_images_is_read_without_that_part(tmp_path: Path) -> None:
    save_family(HYBRID, tmp_path)

    def as_published(tensors: dict[str, Any]) -> None:
        for name in list(tensors):
            if name.startswith("model."):
                tensors[f"model.language_{name}"] = tensors.pop(name)
        gain = tensors["model.language_model.norm.weight"]
        tensors |= {"model.visual.merger.norm.weight": gain, "mtp.norm.weight": gain}

    text = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    plain = open_network(tmp_path)
    change_weights(tmp_path, as_published)
    whole = {"model_type": "qwen3_5", "text_config": text}
    whole["architectures"] = ["Qwen3_5ForConditionalGeneration"]
    (tmp_path / "config.json").write_text(json.dumps(whole), encoding="utf-8")
    found = open_network(tmp_path)
    assert replace(found.config, architecture=plain.config.architecture) == plain.config
    assert (found.read().final_norm == plain.read().final_norm).all()


def test_a_wrapped_model_is_tied_as_the_whole_says(tmp_path: Path) -> None:
    save_family(HYBRID, tmp_path)
    text = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    text.pop("tie_word_embeddings", None)
    change_weights(tmp_path, lambda tensors: tensors.pop("lm_head.weight", None))
    whole = {"model_type": "qwen3_5", "text_config": text, "tie_word_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps(whole), encoding="utf-8")
    assert open_network(tmp_path).config.share_embedding_table


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
