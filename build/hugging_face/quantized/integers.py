"""Unpack integers of 4 or 8 bits that are stored in 32-bit words."""

from __future__ import annotations

import numpy as np

from build.checkpoints.tensor_file import AnyArray


def unpack(words: AnyArray, bits: int) -> AnyArray:
    """Unpack the last axis, the lowest bits of a word first.

    Args:
        words: int32 [..., n].
        bits: 4 or 8.

    Returns:
        uint8 [..., n * 32 / bits].
    """
    values = np.ascontiguousarray(words, dtype="<i4").view(np.uint8)
    if bits == 8:
        return values
    halves: AnyArray = np.stack([values & 15, values >> 4], axis=-1)
    return halves.reshape(*values.shape[:-1], -1)


def signed(values: AnyArray, bits: int) -> AnyArray:
    """Subtract half of the range: uint8 from 0 on becomes int8 around 0."""
    return (values - np.uint8(1 << (bits - 1))).view(np.int8)


def unsigned(values: AnyArray, bits: int) -> AnyArray:
    """Add half of the range: int8 around 0 becomes uint8 from 0 on."""
    return np.ascontiguousarray(values).view(np.uint8) + np.uint8(1 << (bits - 1))
