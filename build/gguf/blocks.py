"""Decode the blocks of GGUF: groups of integers with a scale and an offset.

Source: llama.cpp, ``ggml/src/ggml-quants.c``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from build.checkpoints.tensor_file import AnyArray, Float32Array, Tensor
from build.gguf.file import STORED_TYPES

_ROWS = 4096


class Groups(NamedTuple):
    """Weights in groups of equal size: ``scale * integer - offset``.

    Attributes:
        integers: int16 [rows, groups, weights of a group].
        scale: float32 [rows, groups].
        offset: float32 [rows, groups].
    """

    integers: AnyArray
    scale: Float32Array
    offset: Float32Array


def groups_of(kind: str, data: AnyArray) -> Groups:
    """Decode a matrix.

    Args:
        kind: Its type, one of ``STORED_TYPES`` that has blocks.
        data: uint8 [rows, bytes of a row].
    """
    stored = STORED_TYPES[kind]
    integers, scale, offset = _DECODERS[kind](data.reshape(-1, stored.num_bytes))
    per_row = len(data), data.shape[1] // stored.num_bytes * scale.shape[1]
    return Groups(
        integers.astype(np.int16).reshape(*per_row, -1), scale.reshape(per_row), offset.reshape(per_row)
    )


def dequantized(kind: str, data: AnyArray, dtype: npt.DTypeLike = np.float32) -> AnyArray:
    """Return the values of a tensor; in float32 they are those of llama.cpp to the bit.

    Args:
        kind: Its type, one of ``STORED_TYPES``.
        data: As ``StoredTensor.read`` returns it.
        dtype: Type to round to.
    """
    stored = STORED_TYPES[kind]
    if stored.is_float:
        return Tensor(kind, data.shape, data).to_float32().astype(dtype)
    values = np.empty((len(data), data.shape[1] // stored.num_bytes * stored.block), dtype)
    for begin in range(0, len(data), _ROWS):  # an embedding has gigabytes on the way
        groups = groups_of(kind, data[begin : begin + _ROWS])
        part = groups.integers * groups.scale[:, :, None] - groups.offset[:, :, None]
        values[begin : begin + _ROWS] = part.reshape(len(part), -1)
    return values


_Decoded = tuple[AnyArray, Float32Array, Float32Array]


def _half(blocks: AnyArray, begin: int) -> Float32Array:
    """Return the float16 at a place of each block, float32 [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, begin : begin + 2]).view("<f2").astype(np.float32)


def _nibbles(stored: AnyArray) -> AnyArray:
    """Return the low halves of all bytes, then the high ones: [..., n] becomes [..., 2 * n]."""
    return np.concatenate([stored & 15, stored >> 4], axis=-1)


def _fifth_bits(stored: AnyArray) -> AnyArray:
    return np.unpackbits(stored, axis=-1, bitorder="little") << 4


def _q4_0(blocks: AnyArray) -> _Decoded:
    scale = _half(blocks, 0)
    return _nibbles(blocks[:, 2:]).astype(np.int8) - 8, scale, np.zeros_like(scale)


def _q4_1(blocks: AnyArray) -> _Decoded:
    return _nibbles(blocks[:, 4:]), _half(blocks, 0), -_half(blocks, 2)


def _q5_0(blocks: AnyArray) -> _Decoded:
    scale = _half(blocks, 0)
    integers = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return integers.astype(np.int8) - 16, scale, np.zeros_like(scale)


def _q5_1(blocks: AnyArray) -> _Decoded:
    return _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8]), _half(blocks, 0), -_half(blocks, 2)


def _q8_0(blocks: AnyArray) -> _Decoded:
    scale = _half(blocks, 0)
    return blocks[:, 2:].view(np.int8), scale, np.zeros_like(scale)


def _scales_and_offsets(blocks: AnyArray) -> tuple[Float32Array, Float32Array]:
    """Return those of the eight groups of a block, which are integers of six bits in twelve bytes."""
    low, middle, high = np.split(blocks[:, 4:16], 3, axis=1)
    scales = np.concatenate([low & 63, high & 15 | low >> 6 << 4], axis=1)
    offsets = np.concatenate([middle & 63, high >> 4 | middle >> 6 << 4], axis=1)
    return _half(blocks, 0) * scales, _half(blocks, 2) * offsets


def _q4_k(blocks: AnyArray) -> _Decoded:
    return _nibbles(blocks[:, 16:].reshape(len(blocks), 4, 32)), *_scales_and_offsets(blocks)


def _q5_k(blocks: AnyArray) -> _Decoded:
    high = np.unpackbits(blocks[:, 16:48, None], axis=2, bitorder="little")  # of each weight in eight groups
    low = _nibbles(blocks[:, 48:].reshape(len(blocks), 4, 32)).reshape(len(blocks), 8, 32)
    return low | high.swapaxes(1, 2) << 4, *_scales_and_offsets(blocks)


def _q6_k(blocks: AnyArray) -> _Decoded:
    low = _nibbles(blocks[:, :128].reshape(len(blocks), 2, 64))
    pairs = blocks[:, 128:192].reshape(len(blocks), 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None]
    scale = _half(blocks, 208) * np.ascontiguousarray(blocks[:, 192:208]).view(np.int8)
    integers = low | (pairs & 3).reshape(low.shape) << 4
    return integers.astype(np.int8) - 32, scale, np.zeros_like(scale)


_DECODERS: Mapping[str, Callable[[AnyArray], _Decoded]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
