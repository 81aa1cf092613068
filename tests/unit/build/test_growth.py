"""Tests of grown networks: same function, same logits, same quantized weights, at the recipe's size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from build.networks.growth import check_growth, grow, head_slots, layer_slots
from build.networks.network import Network
from build.networks.weight_only import apply_quantization
from build.recipe import Growth, load_recipe
from pipelines.errors import RecipeError
from tests.support.checkpoints import make_checkpoint, mean_kl, reference_logits
from tests.unit.build.test_openvino_engine import engine_of, largest_error, run, token_ids

GROWTH = Growth(hidden_size=256, num_layers=5, intermediate_size=640, num_heads=12, num_kv_heads=3)


@pytest.fixture(scope="module", params=["tied", "untied"])
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Network:
    tied = request.param == "tied"
    directory = tmp_path_factory.mktemp("small")
    return make_checkpoint(directory, share_embedding_table=tied)


def test_grown_network_is_the_same_function_in_float64(small: Network) -> None:
    reference = reference_logits(small, token_ids())
    # The rescaled gains are rounded to float32: half a unit in the last place, 3e-8, of each.
    assert np.abs(reference - reference_logits(grow(small, GROWTH), token_ids())).max() < 1e-5


def test_grown_engine_has_the_small_engines_logits(small: Network, tmp_path: Path) -> None:
    for name, network in (("small", small), ("grown", grow(small, GROWTH))):
        (tmp_path / name).mkdir()
        logits = run(engine_of(tmp_path / name, network), token_ids())
        assert largest_error(reference_logits(small, token_ids()), logits) < 1e-4


def test_int8_gives_the_original_weights_the_same_scales(small: Network, tmp_path: Path) -> None:
    quantized = apply_quantization(small, "int8", "int8")
    grown = apply_quantization(grow(small, GROWTH), "int8", "int8")
    reference = reference_logits(quantized, token_ids())
    assert np.abs(reference - reference_logits(grown, token_ids())).max() < 1e-5
    slot = layer_slots(small.config, GROWTH)[1]
    before, after = quantized.layer(1).fc, grown.layer(slot).fc
    assert before.scale is not None and after.scale is not None
    assert np.array_equal(before.weight.data, after.weight.data[:256, :128])
    assert np.array_equal(before.scale, after.scale[:256])
    # With dynamic quantization a rounding can fall the other way, no more than that.
    dynamic = []
    for name, network in (("small", quantized), ("grown", grown)):
        (tmp_path / name).mkdir()
        dynamic.append(run(engine_of(tmp_path / name, network, dynamic=True), token_ids()))
    assert mean_kl(*dynamic) < 0.01


def test_growth_depends_on_the_seed_alone(small: Network) -> None:
    first, second = grow(small, GROWTH).layer(1), grow(small, GROWTH).layer(1)
    other = grow(small, replace(GROWTH, seed=1)).layer(1)
    for linear, same, different in zip(first.linears(), second.linears(), other.linears(), strict=True):
        assert np.array_equal(linear.weight.data, same.weight.data)
        assert not np.array_equal(linear.weight.data, different.weight.data)


def test_no_two_matrices_are_alike(small: Network) -> None:
    """OpenVINO stores equal constants once; a step would then read less than its size suggests."""
    grown = apply_quantization(grow(small, GROWTH), "int8", "int8")
    contents = [
        linear.weight.data.tobytes()
        for index in range(GROWTH.num_layers)
        for linear in grown.layer(index).linears()
    ]
    assert len(set(contents)) == len(contents)


def test_heads_keep_their_key_head_and_their_groups(small: Network) -> None:
    heads, kv_heads = head_slots(small.config, GROWTH)
    assert heads.tolist() == [0, 1, 4, 5]
    assert kv_heads.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 64}, "would shrink"),
        ({"num_layers": 1}, "would shrink"),
        ({"hidden_size": 200}, "share a scale"),
        ({"intermediate_size": 300}, "share a scale"),
        ({"num_heads": 10, "num_kv_heads": 4}, "num_heads=10 must be a multiple"),
        ({"num_heads": 4, "num_kv_heads": 4}, "num_heads=4 must be a multiple"),
        ({"num_heads": 6, "num_kv_heads": 2}, "share a scale"),
    ],
)
def test_sizes_that_would_change_the_function_are_refused(
    changes: dict[str, int], message: str, small: Network
) -> None:
    with pytest.raises(RecipeError, match=message):
        grow(small, replace(GROWTH, **changes))


def test_quantized_checkpoint_is_not_grown(tmp_path: Path) -> None:
    network = make_checkpoint(tmp_path, "W8A16")
    with pytest.raises(RecipeError, match="quantized"):
        grow(network, GROWTH)


@pytest.mark.parametrize(("name", "millions"), [("demo", 100), ("demo-large", 500)])
def test_recipes_grow_the_demo_target_to_their_claimed_size(name: str, millions: int, tmp_path: Path) -> None:
    growth = load_recipe(name).target.growth
    assert growth is not None
    config = make_checkpoint(tmp_path, hidden_size=256, num_hidden_layers=1, intermediate_size=768).config
    check_growth(replace(config, layers=config.layers * 8), growth)
    heads = growth.num_heads + growth.num_kv_heads
    layer = growth.hidden_size * (2 * heads * config.head_size + 3 * growth.intermediate_size)
    parameters = growth.num_layers * layer + config.vocab_size * growth.hidden_size
    assert parameters / 1e6 == pytest.approx(millions, rel=0.01)
