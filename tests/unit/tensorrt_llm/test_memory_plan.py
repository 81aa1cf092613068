"""Tests of the memory plan: numbers of parameters, keys and values, and two caches that fit together."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from build.recipe import load_recipe
from build.tensorrt_llm.memory_plan import (
    MemoryPlan,
    kv_bytes_per_token,
    plan_memory,
    weight_bytes,
    workspace_bytes,
)
from build.tensorrt_llm.model_config import ModelConfig, read_model_config
from build.tensorrt_llm.pair import Pair, read_pair
from build.tensorrt_llm.settings import GPUS
from pipelines.errors import CheckpointError, RecipeError
from tests.conftest import REPOSITORY_ROOT
from tests.support.hugging_face_checkpoints import change_config
from tests.support.model_configs import write_model
from tests.unit.tensorrt_llm.test_preflight import broken_pair, with_models

PAIRS = [
    f"{name}-{kind}"
    for name in ("llama-3-3-70b", "llama-3-1-405b", "llama-3-1-8b", "qwen2-5-32b", "qwen3-8b", "qwen3-32b")
    for kind in ("fp8", "int8")
]
GUIDE = (REPOSITORY_ROOT / "docs" / "how-to" / "nvidia-gpus.md").read_text(encoding="utf-8")


def config_of(tmp_path: Path, name: str, **changes: Any) -> ModelConfig:
    return dataclasses.replace(read_model_config(write_model(tmp_path / name, name)), **changes)


@pytest.mark.parametrize(
    ("name", "parameters", "head_twice"),
    [
        # Published numbers of parameters; four of Qwen's are exact, without biases, norms of heads and the
        # last norm.
        ("Qwen2.5-32B-Instruct", 32_763_876_352 - 458_752 - 5_120, False),
        ("Llama-3.1-8B-Instruct", 8.03e9, False),
        ("Llama-3.3-70B-Instruct", 70.6e9, False),
        ("Llama-3.1-405B-Instruct", 405.9e9, False),
        ("Llama-3.2-1B-Instruct", 1.236e9, True),
        ("Qwen2.5-0.5B-Instruct", 0.494e9, True),
        ("Qwen3-32B", 32_762_123_264 - 64 * 256 - 5_120, False),
        ("Qwen3-8B", 8_190_735_360 - 36 * 256 - 4_096, False),
        ("Qwen3-0.6B", 596_049_920 - 28 * 256 - 1_024, True),
    ],
)
def test_weights_agree_with_the_published_number_of_parameters(
    name: str, parameters: float, head_twice: bool, tmp_path: Path
) -> None:
    config = config_of(tmp_path, name)
    counted = weight_bytes(config) / 2 - (config.vocab_size * config.hidden_size if head_twice else 0)
    exact = isinstance(parameters, int)
    assert counted == parameters if exact else abs(counted / parameters - 1) < 0.002


@pytest.mark.parametrize("key", ["num_experts", "num_local_experts"])
def test_a_mixture_is_refused_whose_experts_the_plan_does_not_count(key: str, tmp_path: Path) -> None:
    directory = write_model(tmp_path / "mixture", "Qwen3-8B")
    change_config(directory, **{key: 128})
    with pytest.raises(CheckpointError, match="the memory of experts is not planned here"):
        read_model_config(directory)


def test_weights_shrink_with_quantization_and_split(tmp_path: Path) -> None:
    config = config_of(tmp_path, "Llama-3.1-8B-Instruct")
    table = 2 * 128256 * 4096
    norms = 32 * 2 * 2 * 4096
    linears = weight_bytes(config) - 2 * table - norms
    assert weight_bytes(dataclasses.replace(config, quant_algo="FP8")) == linears // 2 + 2 * table + norms
    split = dataclasses.replace(config, tp_size=4)
    assert weight_bytes(split) == linears // 4 + 2 * (table // 4) + norms
    whole = dataclasses.replace(split, parallel_embedding=False)
    assert weight_bytes(whole) == linears // 4 + table + table // 4 + norms
    stages = dataclasses.replace(config, pp_size=2)
    assert weight_bytes(stages) == linears // 2 + table + norms // 2


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 2 * 32 * 8 * 128 * 2),
        ({"kv_cache_quant_algo": "FP8"}, 2 * 32 * 8 * 128),
        ({"tp_size": 4}, 2 * 32 * 2 * 128 * 2),
        ({"tp_size": 16}, 2 * 32 * 1 * 128 * 2),  # heads are copied, not cut
        ({"pp_size": 2}, 2 * 16 * 8 * 128 * 2),
    ],
)
def test_bytes_of_a_token(changes: dict[str, Any], expected: int, tmp_path: Path) -> None:
    assert kv_bytes_per_token(config_of(tmp_path, "Llama-3.1-8B-Instruct", **changes)) == expected


def free_after(plan: MemoryPlan, pair: Pair, device: int) -> int:
    """Return what is left of a GPU when both engines are loaded as planned, the target first."""
    free = pair.gpu.memory_bytes
    for engine in (plan.target, plan.draft):
        if device not in engine.devices:
            continue
        free -= engine.static_bytes
        by_fraction = free * engine.kv_cache_free_gpu_mem_fraction
        by_limit = engine.max_tokens_in_paged_kv_cache * engine.kv_bytes_per_token
        assert by_fraction >= by_limit  # the limit in tokens decides
        free -= by_limit
    return free


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("name", PAIRS)
def test_both_caches_hold_the_same_tokens_and_fit(name: str, gpu: str, tmp_path: Path) -> None:
    pair = read_pair(with_models(load_recipe(f"{name}-{gpu}"), tmp_path), tmp_path / "engines")
    plan = plan_memory(pair)
    assert plan.fits
    assert plan.usable_bytes == int(0.97 * pair.gpu.memory_bytes)
    assert plan.target.max_tokens_in_paged_kv_cache == plan.draft.max_tokens_in_paged_kv_cache
    for device in {*plan.target.devices, *plan.draft.devices}:
        assert free_after(plan, pair, device) >= pair.gpu.memory_bytes - plan.usable_bytes
    # Nothing is wasted: another block in both would not fit on the fullest GPU.
    block = 32 * (plan.target.kv_bytes_per_token + plan.draft.kv_bytes_per_token)
    left = free_after(plan, pair, plan.fullest_device) - (pair.gpu.memory_bytes - plan.usable_bytes)
    assert left < 2 * block
    assert f"{plan.tokens:,}" in GUIDE, "the table of recipes in the guide says otherwise"


def test_loaded_in_the_other_order_the_limits_in_tokens_still_fit(tmp_path: Path) -> None:
    pair = broken_pair(tmp_path, {}, {})
    plan = plan_memory(pair)
    free = pair.gpu.memory_bytes
    for engine in (plan.draft, plan.target):
        free -= engine.static_bytes
        by_fraction = int(free * engine.kv_cache_free_gpu_mem_fraction)
        limit = engine.max_tokens_in_paged_kv_cache * engine.kv_bytes_per_token
        free -= min(by_fraction, limit)
    assert free >= 0


def test_the_whole_memory_is_no_fraction_that_tensorrt_llm_takes(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="less than 1"):
        broken_pair(tmp_path, {"target": {"tensorrt_llm": {"kv_cache_free_gpu_mem_fraction": 1}}}, {})


def test_logits_of_drafts_and_of_the_decoder_have_room(tmp_path: Path) -> None:
    """Llama 3.1 8B and 3.2 1B at 64 requests of 6 draft tokens, counted by hand."""
    serving = {"max_batch_size": 64, "max_draft_len": 6}
    recipe = with_models(load_recipe("llama-3-1-8b-fp8-h100-80gb"), tmp_path)
    recipe = dataclasses.replace(recipe, serving=dataclasses.replace(recipe.serving, **serving))
    pair = read_pair(recipe, tmp_path / "engines")
    row = 128256 * 4
    of_verification = 64 * 7 * 4 * row  # logits, draftLogits, draftProbs, targetProbs: 0.86 GiB
    of_gathering = 8 * 64 * row
    of_decoder = 64 * 8 * row
    for side, logits in (
        (pair.target, of_verification + of_decoder),
        (pair.draft, of_gathering + of_decoder),
    ):
        without = dataclasses.replace(side, config=dataclasses.replace(side.config, vocab_size=1))
        assert workspace_bytes(pair, side) - workspace_bytes(pair, without) == logits * 128255 // 128256


def test_a_fraction_of_the_recipe_is_kept(tmp_path: Path) -> None:
    section = {"tp_size": 2, "reduce_fusion": True, "kv_cache_free_gpu_mem_fraction": 0.5}
    pair = broken_pair(tmp_path, {"target": {"tensorrt_llm": section}}, {})
    plan = plan_memory(pair)
    assert plan.target.kv_cache_free_gpu_mem_fraction == 0.5
    free = pair.gpu.memory_bytes - plan.target.static_bytes
    tokens = plan.target.max_tokens_in_paged_kv_cache
    assert tokens == int(free * 0.5) // plan.target.kv_bytes_per_token // 32 * 32
    assert plan.draft.max_tokens_in_paged_kv_cache == tokens


def test_a_draft_on_a_gpu_of_its_own(tmp_path: Path) -> None:
    pair = broken_pair(tmp_path, {"draft": {"tensorrt_llm": {"gpu_device_ids": [2]}}}, {})
    beside = plan_memory(broken_pair(tmp_path, {}, {}))
    alone = plan_memory(pair)
    assert alone.draft.devices == (2,)
    assert alone.tokens > beside.tokens
    assert alone.fits
