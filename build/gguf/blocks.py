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
from build.networks.linear import Linear

ENGINE_BITS: Mapping[str, float] = {
    "Q4_0": 4.5,
    "Q4_1": 5,
    "Q4_K": 4.625,
    "Q5_0": 5.5,
    "Q5_1": 6,
    "Q5_K": 5.625,
    "Q6_K": 6.5625,
    "Q8_0": 8.5,
}
"""Bits of a weight in an engine, with its share of scales and offsets."""

_ROWS = 4096


def linear_of(kind: str, data: AnyArray) -> Linear:
    """Decode a matrix without rounding: its values are llama.cpp's to the bit.

    Args:
        kind: Its type, one of ``STORED_TYPES`` that has blocks.
        data: uint8 [rows, bytes of a row].
    """
    groups = _DECODERS[kind](data.reshape(-1, STORED_TYPES[kind].num_bytes))
    rows, has_offset = len(data), groups.offset is not None
    bits = int(kind[1])
    integers = groups.integers.reshape(rows, -1).view(np.uint8 if has_offset else np.int8)
    units = groups.units
    return Linear(
        Tensor("U8" if integers.dtype == np.uint8 else "I8", integers.shape, integers),
        groups.scale.reshape(rows, -1),
        bits=bits,
        offset=None if groups.offset is None else groups.offset.reshape(rows, -1),
        units=None
        if units is None
        else np.ascontiguousarray(units.reshape(rows, -1, units.shape[1]).swapaxes(1, 2)),
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
        values[begin : begin + _ROWS] = linear_of(kind, data[begin : begin + _ROWS]).to_float32()
    return values


class _Groups(NamedTuple):
    """Blocks whose weights are ``scale * integer + offset``.

    Attributes:
        integers: int8 or uint8 [blocks, ...], in the order of the weights.
        scale: float32 [blocks, groups].
        offset: float32 [blocks, groups]; None for 0.
        units: float32 [blocks, kinds], of which scales, and offsets, are multiples; None if there are no
            such numbers.
    """

    integers: AnyArray
    scale: Float32Array
    offset: Float32Array | None = None
    units: Float32Array | None = None


def _half(blocks: AnyArray, begin: int) -> Float32Array:
    """Return the float16 at a place of each block, float32 [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, begin : begin + 2]).view("<f2").astype(np.float32)


def _nibbles(stored: AnyArray) -> AnyArray:
    """Return the low halves of all bytes, then the high ones: [..., n] becomes [..., 2 * n]."""
    return np.concatenate([stored & 15, stored >> 4], axis=-1)


def _fifth_bits(stored: AnyArray) -> AnyArray:
    return np.unpackbits(stored, axis=-1, bitorder="little") << 4


def _q4_0(blocks: AnyArray) -> _Groups:
    return _Groups(_nibbles(blocks[:, 2:]) - np.uint8(8), _half(blocks, 0))


def _q4_1(blocks: AnyArray) -> _Groups:
    return _Groups(_nibbles(blocks[:, 4:]), _half(blocks, 0), _half(blocks, 2))


def _q5_0(blocks: AnyArray) -> _Groups:
    integers = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return _Groups(integers - np.uint8(16), _half(blocks, 0))


def _q5_1(blocks: AnyArray) -> _Groups:
    integers = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return _Groups(integers, _half(blocks, 0), _half(blocks, 2))


def _q8_0(blocks: AnyArray) -> _Groups:
    return _Groups(np.ascontiguousarray(blocks[:, 2:]), _half(blocks, 0))


def _with_levels(integers: AnyArray, blocks: AnyArray) -> _Groups:
    """Add the scales and offsets of eight groups: integers of six bits in twelve bytes."""
    low, middle, high = np.split(blocks[:, 4:16], 3, axis=1)
    scales = np.concatenate([low & 63, high & 15 | low >> 6 << 4], axis=1)
    offsets = np.concatenate([middle & 63, high >> 4 | middle >> 6 << 4], axis=1)
    scale_unit, offset_unit = _half(blocks, 0), -_half(blocks, 2)
    units = np.concatenate([scale_unit, offset_unit], axis=1)
    return _Groups(integers, scale_unit * scales, offset_unit * offsets, units)


def _q4_k(blocks: AnyArray) -> _Groups:
    return _with_levels(_nibbles(blocks[:, 16:].reshape(-1, 4, 32)), blocks)


def _q5_k(blocks: AnyArray) -> _Groups:
    high = np.unpackbits(blocks[:, 16:48, None], axis=2, bitorder="little")  # of each weight in eight groups
    low = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    return _with_levels(low | high.swapaxes(1, 2) << 4, blocks)


def _q6_k(blocks: AnyArray) -> _Groups:
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64))
    pairs = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None]
    integers = (low | (pairs & 3).reshape(low.shape) << 4) - np.uint8(32)
    unit, levels = _half(blocks, 208), np.ascontiguousarray(blocks[:, 192:208]).view(np.int8)
    return _Groups(integers, unit * levels, units=unit)


_DECODERS: Mapping[str, Callable[[AnyArray], _Groups]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
