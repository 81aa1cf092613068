"""Compute the angles of the rotary position embedding, as ``transformers/modeling_rope_utils.py`` does."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from build.checkpoints.tensor_file import Float32Array
from build.networks.network import Rotary, RotaryScaling


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
