"""Tests of positions that a recipe scales with YaRN."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from build.hugging_face.config import parse_network_config
from build.hugging_face.write import hugging_face_config
from build.networks.growth import grown_config
from build.networks.network import NetworkConfig
from build.networks.rotary import rotary_frequencies, stretched
from build.preflight import check_recipe, read_source
from build.recipe import Yarn, load_recipe
from pipelines.errors import IncompatiblePairError, RecipeError

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 2048,
    "rope_theta": 1e4,
    "rms_norm_eps": 1e-5,
}


def config_of(**changes: object) -> NetworkConfig:
    return parse_network_config({**LLAMA, **changes}, Path("config.json"), 1)


@pytest.mark.parametrize(("factor", "original"), [(33.0, 512), (4.0, 2048), (1.5, 100)])
def test_the_recipe_scales_as_config_json_does(factor: float, original: int) -> None:
    rope = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    wanted = config_of(rope_scaling=rope).layers[1].rotary
    config = stretched(config_of(), Yarn(factor, original))
    found = config.layers[1].rotary
    assert wanted is not None
    assert found is not None
    assert np.array_equal(rotary_frequencies(found), rotary_frequencies(wanted))
    assert found.scaling is not None
    assert wanted.scaling is not None
    assert found.scaling.magnitude == wanted.scaling.magnitude > 1
    assert config.max_position_embeddings == int(factor * original)
    written = parse_network_config(hugging_face_config(config, [0]), Path("config.json"), 1)
    assert written.layers[1].rotary == found


def test_a_checkpoint_with_scaling_of_its_own_is_refused() -> None:
    config = config_of(rope_scaling={"rope_type": "linear", "factor": 2.0})
    with pytest.raises(RecipeError, match=r"cannot be scaled.*linear.*remove yarn"):
        stretched(config, Yarn(4.0, 512))


def test_a_window_is_refused() -> None:
    config = config_of()
    config = replace(config, layers=tuple(replace(layer, window=64) for layer in config.layers))
    with pytest.raises(RecipeError, match="window=64"):
        stretched(config, Yarn(4.0, 512))


def test_the_network_that_is_compiled_has_the_scaling_also_when_it_is_grown() -> None:
    recipe = load_recipe("demo-long")
    assert recipe.target.yarn is not None
    assert recipe.target.growth is not None
    source = read_source(recipe.target, recipe.target.checkpoint_directory(), 1).network
    for config in (source.read().config, grown_config(source.config, recipe.target.growth)):
        kinds = {
            layer.rotary.scaling.kind for layer in config.layers if layer.rotary and layer.rotary.scaling
        }
        assert kinds == {"yarn"}
        assert config.max_position_embeddings == 33 * 512


def test_the_pair_for_long_contexts_passes_and_without_yarn_it_does_not() -> None:
    recipe = load_recipe("demo-long")
    for source in check_recipe(recipe):
        assert source.network.config.max_position_embeddings >= recipe.serving.max_seq_len
    plain = replace(recipe, draft=replace(recipe.draft, yarn=None))
    with pytest.raises(IncompatiblePairError, match="2048"):
        check_recipe(plain)
    directory = recipe.draft.checkpoint_directory()
    assert read_source(plain.draft, directory, 1).network.config.max_position_embeddings == 2048
