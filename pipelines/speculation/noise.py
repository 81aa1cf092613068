"""Noise that belongs to a position of the output, not to the model that draws it.

Draft and target add the same Gumbel noise at the same absolute position, so they choose the same token
whenever their distributions agree, and the target's choice is its own sample whatever the draft did.

Source: drafter-invariant speculative decoding, arXiv:2408.07978; the Gumbel-max trick; Philox 4x64-10,
Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3" (numpy's ``Philox``).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def uniform_at(seed: int, position: int, vocab_size: int) -> npt.NDArray[np.float64]:
    """Uniform noise of one position.

    Args:
        seed: Key of the generator, 0 to 2**64 - 1.
        position: Absolute position of the token to be chosen, at least 0.
        vocab_size: Number of values.

    Returns:
        float64 [vocab_size], strictly between 0 and 1. Value i depends on ``seed``, ``position`` and i
        alone: it is made from the top 53 bits of the i-th 64-bit word of Philox 4x64-10 with key
        (seed, 0) and a counter that starts at (0, 0, 0, position).
    """
    key, counter = np.array([seed, 0], np.uint64), np.array([0, 0, 0, position], np.uint64)
    words: npt.NDArray[np.uint64] = np.random.Philox(key=key, counter=counter).random_raw(vocab_size)
    uniform: npt.NDArray[np.float64] = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return uniform


def gumbel_at(seed: int, position: int, vocab_size: int) -> npt.NDArray[np.float64]:
    """Standard Gumbel noise of one position, float64 [vocab_size]; arguments as in ``uniform_at``."""
    noise: npt.NDArray[np.float64] = -np.log(-np.log(uniform_at(seed, position, vocab_size)))
    return noise
