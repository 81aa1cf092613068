"""Generates noise that depends on the position in the output and not on the model that draws it.

Source: Philox 4x64-10, Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3".

A counter-based generator (numpy's ``Philox``) has no state, so the noise of a position does not depend on
when, how often or by which model it is computed.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]


class NoiseStream(IntEnum):
    """Independent noise streams of one seed."""

    SHARED = 0
    """Used by draft and target; with the ratio rule by the target only."""

    DRAFT = 1
    """Used by the draft for proposals to the ratio rule."""

    ACCEPTANCE = 2
    """Used for acceptance decisions of the ratio rule."""


def words_at(seed: int, stream: NoiseStream, position: int, count: int) -> Words:
    """Return the random bits of a position.

    Args:
        seed: First half of the key, 0 to 2**64 - 1.
        stream: Second half of the key.
        position: Absolute position of the token, at least 0.
        count: Number of words.

    Returns:
        uint64 [count]. Word i depends only on ``seed``, ``stream``, ``position`` and i: it is the i-th
        word of Philox 4x64-10 with key (seed, stream) and a counter that starts at (0, 0, 0, position).
    """
    key, counter = np.array([seed, stream], np.uint64), np.array([0, 0, 0, position], np.uint64)
    words: Words = np.random.Philox(key=key, counter=counter).random_raw(count)
    return words


def uniform(words: Words) -> npt.NDArray[np.float64]:
    """Return uniform noise, float64, strictly between 0 and 1, from the top 53 bits.

    The result is non-decreasing in the word, so the largest word has the largest value.
    """
    values: npt.NDArray[np.float64] = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return np.minimum(values, 1.0 - 2.0**-53)  # the largest words are rounded to 1


def gumbel(words: Words) -> npt.NDArray[np.float64]:
    """Return standard Gumbel noise, float64."""
    values: npt.NDArray[np.float64] = -np.log(-np.log(uniform(words)))
    return values
