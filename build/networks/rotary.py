"""Compute the angles of the rotary position embedding, as ``transformers/modeling_rope_utils.py`` does."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from build.checkpoints.tensor_file import Float32Array
from build.networks.network import LayerConfig, NetworkConfig, Rotary, RotaryScaling
from build.recipe import Yarn
from pipelines.errors import RecipeError

_BETA_SLOW, _BETA_FAST = 1.0, 32.0  # those of transformers and vLLM, if a checkpoint does not set them


def rotary_frequencies(rotary: Rotary) -> Float32Array:
    """Return the angle per position of each pair of coordinates, float32 [size / 2].

    The scalings of Llama 3 and YaRN keep short wavelengths, multiply long ones by ``factor`` and interpolate
    in between: Llama 3 by the wavelength, YaRN by the number of the frequency.
    """
    frequencies = 1.0 / rotary.base ** (np.arange(0, rotary.size, 2, dtype=np.float64) / rotary.size)
    scaling = rotary.scaling
    if scaling is None:
        return frequencies.astype(np.float32)
    if scaling.kind == "linear":
        frequencies = frequencies / scaling.factor
    elif scaling.kind == "longrope":
        frequencies = frequencies / np.asarray(scaling.divisors)
    elif scaling.kind == "yarn":
        share = _yarn_share(rotary, scaling)
        frequencies = (1 - share) * frequencies + share * frequencies / scaling.factor
    else:
        wavelengths = 2 * np.pi / frequencies
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        share = (scaling.original_max_position_embeddings / wavelengths - low) / (high - low)
        share = np.clip(share, 0.0, 1.0)
        frequencies = (1 - share) * frequencies / scaling.factor + share * frequencies
    return frequencies.astype(np.float32)


def _yarn_share(rotary: Rotary, scaling: RotaryScaling) -> npt.NDArray[np.float64]:
    """Return how far each frequency is interpolated: 0 not at all, 1 wholly."""

    def index_of(rotations: float) -> float:
        """Return the index of the frequency that turns so often over the original context."""
        context = scaling.original_max_position_embeddings
        return rotary.size * math.log(context / (rotations * 2 * math.pi)) / (2 * math.log(rotary.base))

    low, high = index_of(scaling.high_freq_factor), index_of(scaling.low_freq_factor)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary.size - 1)
    if low == high:
        high += 0.001
    return np.clip((np.arange(rotary.size // 2) - low) / (high - low), 0.0, 1.0)


def stretched(config: NetworkConfig, yarn: Yarn) -> NetworkConfig:
    """Return the settings of a network whose positions are scaled with YaRN (arXiv:2309.00071).

    Args:
        config: The network, whose own settings ask for no scaling.
        yarn: The factor, and the context of the training.

    Raises:
        RecipeError: It has a scaling of its own, or layers with a window.
    """
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
            f"yarn: positions of a layer cannot be scaled: rotary={layer.rotary}, window={layer.window}",
            "remove yarn from the recipe; what config.json says of scaling is followed without it",
        )
    return replace(layer, rotary=replace(layer.rotary, scaling=scaling))
