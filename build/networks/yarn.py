"""Stretch a network's positions with YaRN (arXiv:2309.00071), where a recipe asks for it."""

from __future__ import annotations

import math
from dataclasses import replace

from build.networks.config import LayerConfig, NetworkConfig, RotaryScaling
from build.networks.source import NetworkSource
from build.recipe import Yarn
from pipelines.errors import RecipeError

_BETA_SLOW, _BETA_FAST = 1.0, 32.0  # those of transformers and vLLM, if a checkpoint does not set them


def with_yarn(source: NetworkSource, yarn: Yarn) -> NetworkSource:
    """Return a checkpoint whose positions are scaled as if its ``config.json`` said so.

    Args:
        source: The checkpoint.
        yarn: The factor, and the context of the training.

    Raises:
        RecipeError: The checkpoint has a scaling of its own, or layers with a window.
    """
    config = stretched(source.config, yarn)
    return replace(source, config=config, read=lambda: replace(source.read(), config=config))


def stretched(config: NetworkConfig, yarn: Yarn) -> NetworkConfig:
    """Return the settings of a network with scaled positions; raises RecipeError, see ``with_yarn``."""
    original = yarn.original_max_position_embeddings
    scaling = RotaryScaling(
        "yarn",
        yarn.factor,
        _BETA_SLOW,
        _BETA_FAST,
        original,
        magnitude=0.1 * math.log(yarn.factor) + 1.0,
    )
    return replace(
        config,
        layers=tuple(_stretched_layer(layer, scaling) for layer in config.layers),
        max_position_embeddings=int(original * yarn.factor),
    )


def _stretched_layer(layer: LayerConfig, scaling: RotaryScaling) -> LayerConfig:
    if layer.rotary is None or layer.rotary.scaling is not None or layer.window is not None:
        raise RecipeError(
            "yarn: the checkpoint's positions cannot be scaled",
            values=f"a layer with rotary={layer.rotary}, window={layer.window}",
            limit="every layer rotates its heads without scaling, and attends to all positions",
            remedy="remove yarn from the recipe; what config.json says of scaling is followed without it",
        )
    return replace(layer, rotary=replace(layer.rotary, scaling=scaling))
