"""Tests of the plan of an embedded server's memory."""

from __future__ import annotations

import dataclasses
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from build.hugging_face.config import parse_network_config
from build.memory import SERVER_BYTES, EngineMemory, num_parameters, plan_memory, weight_bytes
from build.networks.network import NetworkConfig
from build.recipe import EngineRecipe, KvCache, Recipe, Serving
from build.rendering.kv_blocks import returned_bytes
from build.repository import render_recipe
from pipelines.deploy.triton.pair_record import PairRecord
from pipelines.engine_memory import pair_bytes, read_sizes
from pipelines.errors import RecipeError
from pipelines.executor.loading import load_engine
from pipelines.manifest import EngineFiles
from tests.integration.conftest import tiny_recipe
from tests.support.compiler import ATTENTIONS
from tests.support.tiny_engines import build_tiny_pair

GB = 1e9
FREE = 16 * GB
INT8 = EngineRecipe("target", "int8", lm_head="int8")
LIMITS = Serving(max_batch_size=16, max_seq_len=2048)


def config_of(**changes: Any) -> NetworkConfig:
    """Return the settings of Qwen3 4B, whose 4.02 billion parameters are published."""
    raw = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "torch_dtype": "bfloat16",
        "vocab_size": 151936,
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000,
        "tie_word_embeddings": True,
    }
    return dataclasses.replace(parse_network_config(raw, Path("config.json")), **changes)


def memory_of(engine: EngineRecipe = INT8, **changes: Any) -> EngineMemory:
    return EngineMemory.of_network(config_of(**changes), engine)


def test_parameters_are_those_that_are_published() -> None:
    projections, table = num_parameters(config_of())
    assert abs((projections + table) / 4.02e9 - 1) < 0.01


def test_weights_of_a_quantized_checkpoint_are_planned_with_its_own_groups() -> None:
    plain, fp8 = config_of(), config_of(quant_algo="fp8")
    awq = config_of(quant_algo="awq", quant_bits=4, group_size=128)
    int4, none, checkpoint = (EngineRecipe("target", name) for name in ("int4", "none", "checkpoint"))
    int8 = EngineRecipe("target", "int8")
    gguf = config_of(quant_algo="gguf", quant_bits=5.5)
    assert weight_bytes(plain, int4) < weight_bytes(gguf, int8) == weight_bytes(gguf, checkpoint)
    assert weight_bytes(gguf, int8) < weight_bytes(plain, int8)
    assert weight_bytes(awq, int8) == weight_bytes(awq, int4) == weight_bytes(awq, checkpoint)
    small_groups = dataclasses.replace(awq, group_size=32)
    assert 1.05 < weight_bytes(small_groups, int4) / weight_bytes(awq, int4) < 1.3
    assert weight_bytes(fp8, checkpoint) == weight_bytes(plain, none), "computed in float32"
    assert weight_bytes(fp8, int8) == weight_bytes(plain, int8)


@pytest.mark.parametrize(
    ("engine", "bytes_per_projection", "bytes_per_table_entry"),
    [
        (INT8, 1, 3),  # the embedding is BF16, the head INT8
        (EngineRecipe("target", "int4", lm_head="int8"), 0.578, 3),
        (EngineRecipe("target", "none"), 4, 4),  # one table for both
        (EngineRecipe("target", "int8"), 1, 4),
    ],
)
def test_weights_have_the_size_of_their_type(
    engine: EngineRecipe, bytes_per_projection: float, bytes_per_table_entry: float
) -> None:
    projections, table = num_parameters(config_of())
    expected = projections * bytes_per_projection + table * bytes_per_table_entry
    assert weight_bytes(config_of(), engine) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(("dtype", "head_size"), [("float32", 64), ("float16", 64), ("int8", 96)])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_block_has_the_bytes_that_an_engine_allocates(
    tmp_path: Path, attention: str, dtype: str, head_size: int
) -> None:
    _, target = build_tiny_pair(tmp_path, kv_cache_dtype=dtype, head_size=head_size, attention=attention)
    _, block, _ = read_sizes(target)
    tensors = load_engine(EngineFiles(target), num_blocks=3)._kv
    assert sum(tensor.nbytes for tensor in tensors) == 3 * block


def test_caches_hold_as_many_requests_as_may_run() -> None:
    plan = plan_memory(memory_of(), memory_of(), LIMITS, 200 * GB)
    assert plan.num_blocks == {"target": 16 * 64 + 1, "draft": 16 * 64 + 1}


def test_caches_get_what_the_weights_leave() -> None:
    target, draft = memory_of(), memory_of(hidden_size=1024, intermediate_size=3072)
    plan = plan_memory(target, draft, LIMITS, FREE)
    assert 2 * 64 < plan.num_blocks["target"] < 16 * 64
    used = plan.target.weights + plan.draft.weights + plan.caches
    assert 0.7 * FREE < used + 1.5 * GB <= 0.8 * FREE
    assert f"{FREE / GB:.1f} GB free" in "\n".join(plan.lines())
    with pytest.raises(RecipeError, match=r"6\.0 GB free, .* two requests of 2048 tokens"):
        plan_memory(target, draft, LIMITS, 6 * GB)


def test_the_loop_and_the_target_alone_have_blocks_for_a_request_each() -> None:
    one_place = dataclasses.replace(LIMITS, max_batch_size=1)
    plan = plan_memory(memory_of(), memory_of(), one_place, 200 * GB)
    assert plan.num_blocks["target"] == 2 * 64 + 1


def test_blocks_of_the_recipe_are_kept_and_have_to_fit() -> None:
    given = dataclasses.replace(INT8, kv_cache=KvCache(num_blocks=100))
    plan = plan_memory(memory_of(given), memory_of(), LIMITS, 24 * GB)
    assert plan.num_blocks["target"] == 100 < plan.num_blocks["draft"]
    many = memory_of(dataclasses.replace(INT8, kv_cache=KvCache(num_blocks=10_000)))
    with pytest.raises(RecipeError, match="the memory does not hold this pair"):
        plan_memory(many, many, LIMITS, 24 * GB)


def open_recipe(name: str = "tiny", max_queue_size: int = 64) -> Recipe:
    """Return a recipe that leaves the blocks to the memory."""
    recipe = tiny_recipe(name)
    serving = dataclasses.replace(recipe.serving, max_queue_size=max_queue_size)
    engine = dataclasses.replace(recipe.target, kv_cache=KvCache())
    return dataclasses.replace(recipe, target=engine, draft=engine, serving=serving)


def test_a_repository_keeps_its_chosen_blocks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """While its own server runs, the memory is not free."""
    engines = build_tiny_pair(tmp_path)
    recipe = open_recipe()
    loop = render_recipe(recipe, *engines, tmp_path / "run", free=lambda: 20 * GB) / "speculative"
    assert "memory: 20.0 GB free" in capsys.readouterr().out
    chosen = json.loads((loop / "pair.json").read_text())["num_kv_blocks"]
    most = recipe.serving.max_batch_size * -(-recipe.serving.max_seq_len // 32) + 1
    assert chosen == {"draft": most, "target": most}
    assert render_recipe(recipe, *engines, tmp_path / "run", free=lambda: 0) / "speculative" == loop
    assert capsys.readouterr().out == ""
    with pytest.raises(RecipeError, match="the memory does not hold this pair"):
        render_recipe(open_recipe(max_queue_size=1), *engines, tmp_path / "run", free=lambda: 0)


def test_what_a_running_server_holds_is_free_at_its_next_start(tmp_path: Path) -> None:
    engines = build_tiny_pair(tmp_path / "engines")
    run = render_recipe(open_recipe(), *engines, tmp_path / "run", free=lambda: 20 * GB).parent
    loop = run / "model_repository" / "speculative"
    own = PairRecord.read(loop)
    own_bytes = pair_bytes(own.engine_dirs, own.num_kv_blocks, own.max_batch_size)
    assert returned_bytes(loop) == 0
    with listening(own.socket):
        assert returned_bytes(loop) == own_bytes + SERVER_BYTES
        (loop / "pair.json").write_text('{"format": 1}')  # an older version wrote it
        assert returned_bytes(loop) == 0


@contextmanager
def listening(path: str) -> Iterator[None]:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        yield
    Path(path).unlink()
