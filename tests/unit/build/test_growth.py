"""Tests of grown networks: same function, same logits, same quantized weights, at the recipe's size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from build.networks.growth import grow, grown_config
from build.networks.network import Network
from build.networks.source import open_network
from build.networks.weight_only import apply_quantization
from build.recipe import Growth, load_recipe
from pipelines.errors import RecipeError
from tests.support.checkpoints import make_checkpoint, mean_kl, reference_logits
from tests.unit.build.test_openvino_engine import engine_of, largest_error, run, token_ids

GROWTH = Growth(num_layers=5, intermediate_size=640)  # of 2 layers with 256


@pytest.fixture(scope="module", params=["tied", "untied"])
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Network:
    tied = request.param == "tied"
    directory = tmp_path_factory.mktemp("small")
    return make_checkpoint(directory, share_embedding_table=tied)


def test_grown_network_is_the_same_function_in_float64(small: Network) -> None:
    reference = reference_logits(small, token_ids())
    assert np.abs(reference - reference_logits(grow(small, GROWTH), token_ids())).max() < 1e-9


def test_grown_engine_has_the_small_engines_logits(small: Network, tmp_path: Path) -> None:
    for name, network in (("small", small), ("grown", grow(small, GROWTH))):
        (tmp_path / name).mkdir()
        logits = run(engine_of(tmp_path / name, network), token_ids())
        assert largest_error(reference_logits(small, token_ids()), logits) < 1e-4


def test_int8_gives_the_original_weights_the_same_scales(small: Network, tmp_path: Path) -> None:
    quantized = apply_quantization(small, "int8", "int8")
    grown = apply_quantization(grow(small, GROWTH), "int8", "int8")
    reference = reference_logits(quantized, token_ids())
    assert np.abs(reference - reference_logits(grown, token_ids())).max() < 1e-9
    before, after = quantized.layer(1).fc, grown.layer(2).fc
    assert before.scale is not None and after.scale is not None
    assert np.array_equal(before.weight.data, after.weight.data[:256])
    assert np.array_equal(before.scale, after.scale[:256])
    # With dynamic quantization a rounding can fall the other way, no more than that.
    dynamic = []
    for name, network in (("small", quantized), ("grown", grown)):
        (tmp_path / name).mkdir()
        dynamic.append(run(engine_of(tmp_path / name, network, dynamic=True), token_ids()))
    assert mean_kl(*dynamic) < 0.01


def test_no_two_matrices_of_mlps_are_alike(small: Network) -> None:
    """OpenVINO stores equal constants once; a step would then read less than its size suggests."""
    grown = apply_quantization(grow(small, GROWTH), "int8", "int8")
    contents = [
        linear.weight.data.tobytes()
        for index in range(GROWTH.num_layers)
        for linear in grown.layer(index).mlp()
    ]
    assert len(set(contents)) == len(contents)


@pytest.mark.parametrize(
    "changes", [{"num_layers": 1}, {"intermediate_size": 128}, {"intermediate_size": 300}]
)
def test_sizes_that_would_change_the_function_are_refused(changes: dict[str, int], small: Network) -> None:
    with pytest.raises(RecipeError, match=next(iter(changes))):
        grow(small, replace(GROWTH, **changes))


def test_quantized_checkpoint_is_not_grown(tmp_path: Path) -> None:
    network = make_checkpoint(tmp_path, "W8A16")
    with pytest.raises(RecipeError, match="quant_algo=W8A16"):
        grow(network, GROWTH)


@pytest.mark.parametrize(("name", "millions"), [("demo", 100), ("demo-large", 500)])
def test_recipes_grow_the_demo_target_to_their_claimed_size(name: str, millions: int) -> None:
    recipe = load_recipe(name).target
    assert recipe.growth is not None
    network = open_network(recipe.checkpoint_directory()).read()
    config = grown_config(network.config, recipe.growth)
    mlp = 3 * config.hidden_size * config.intermediate_size
    attention = sum(linear.weight.data.size for linear in (*network.layer(0).qkv, network.layer(0).dense))
    parameters = config.num_hidden_layers * (mlp + attention) + config.vocab_size * config.hidden_size
    assert parameters / 1e6 == pytest.approx(millions, rel=0.01)
