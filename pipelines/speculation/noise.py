"""Noise that belongs to a position of the output, not to the model that draws it.

Source: Philox 4x64-10, Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3" (numpy's
``Philox``). A counter-based generator needs no state, so a position's noise is the same in whatever
order positions are computed, by whomever, how often.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]


class NoiseStream(IntEnum):
    """Streams of one seed that are independent of each other."""

    SHARED = 0
    """Draft and target both draw from it; for the ratio rule the target alone does."""

    DRAFT = 1
    """The draft's own, for proposals to the ratio rule."""

    ACCEPTANCE = 2
    """The ratio rule's coins."""


def words_at(seed: int, stream: NoiseStream, position: int, count: int) -> Words:
    """Random bits of one position.

    Args:
        seed: First half of the key, 0 to 2**64 - 1.
        stream: Second half of the key.
        position: Absolute position of the token to be chosen, at least 0.
        count: Words wanted.

    Returns:
        uint64 [count]. Word i depends on ``seed``, ``stream``, ``position`` and i alone: it is the i-th
        word of Philox 4x64-10 with key (seed, stream) and a counter that starts at (0, 0, 0, position).
    """
    key, counter = np.array([seed, stream], np.uint64), np.array([0, 0, 0, position], np.uint64)
    words: Words = np.random.Philox(key=key, counter=counter).random_raw(count)
    return words


def uniform(words: Words) -> npt.NDArray[np.float64]:
    """Uniform noise, float64, strictly between 0 and 1: the middle of the cell of the top 53 bits.

    Never decreasing in the word, so the largest word has the largest value.
    """
    values: npt.NDArray[np.float64] = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return values


def gumbel(words: Words) -> npt.NDArray[np.float64]:
    """Standard Gumbel noise, float64."""
    values: npt.NDArray[np.float64] = -np.log(-np.log(uniform(words)))
    return values
