"""Quantizes small Hugging Face checkpoints by rounding to nearest, in the forms that people publish.

The packing is checked by the code that reads it: ``tests/unit/build/test_quantized_forms.py`` compares that
code with projections which the forms' own packers wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from build.checkpoints.tensor_file import AnyArray, Float32Array, Tensor, e4m3_values
from tests.support.hugging_face_checkpoints import change_config, change_weights

GROUP = 128

Packed = tuple[dict[str, Tensor], Float32Array]
"""Tensors of a projection by suffix, and the weight that they mean."""


def _int32(values: AnyArray, bits: int) -> Tensor:
    """Pack the last axis of integers from 0 on, the first in the lowest bits."""
    grouped = values.reshape(*values.shape[:-1], -1, 32 // bits).astype(np.uint32)
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    words = np.bitwise_or.reduce(grouped << shifts, axis=-1).view(np.int32)
    return Tensor("I32", words.shape, words)


def _f16(values: Float32Array) -> Tensor:
    return Tensor.from_float32(np.ascontiguousarray(values), "F16")


def _transposed(tensor: Tensor) -> Tensor:
    data = np.ascontiguousarray(tensor.data.T)
    return Tensor(tensor.dtype, data.shape, data)


def _rounded(
    weight: Float32Array, bits: int, *, symmetric: bool, group_size: int = GROUP
) -> tuple[AnyArray, AnyArray, Float32Array, Float32Array]:
    """Return integers [out, in], zero points and scales [out, groups], and the values."""
    most = (1 << bits) - 1
    groups = weight.reshape(len(weight), -1, group_size)
    low = np.minimum(groups.min(axis=2), 0)
    high = np.maximum(groups.max(axis=2), 0)
    if symmetric:
        scale, zero = 2 * np.maximum(-low, high) / most, np.full(low.shape, (most + 1) // 2)
    else:
        scale = (high - low) / most
        zero = np.clip(np.rint(-low / scale), 1, most)
    scale = scale.astype(np.float16).astype(np.float32)
    integers = np.clip(np.rint(groups / scale[:, :, None]) + zero[:, :, None], 0, most)
    values = (integers - zero[:, :, None]).astype(np.float32) * scale[:, :, None]
    return integers.reshape(weight.shape).astype(np.uint8), zero, scale, values.reshape(weight.shape)


def pack_awq(weight: Float32Array, group_size: int = GROUP) -> Packed:
    """Pack as AutoAWQ's GEMM layout."""
    integers, zero, scale, values = _rounded(weight, 4, symmetric=False, group_size=group_size)

    def packed(rows: AnyArray) -> Tensor:
        return _int32(rows.T.reshape(rows.shape[1], -1, 8)[:, :, [0, 2, 4, 6, 1, 3, 5, 7]], 4)

    def flat(tensor: Tensor) -> Tensor:
        data = tensor.data.reshape(len(tensor.data), -1)
        return Tensor("I32", data.shape, data)

    return {"qweight": flat(packed(integers)), "qzeros": flat(packed(zero)), "scales": _f16(scale.T)}, values


def pack_gptq(weight: Float32Array, *, bits: int, symmetric: bool, ordered: bool = False) -> Packed:
    """Pack as AutoGPTQ, with zero points less 1."""
    order = np.arange(weight.shape[1])
    if ordered:
        order = np.random.default_rng(weight.shape[1]).permutation(order)
    integers, zero, scale, values = _rounded(weight[:, order], bits, symmetric=symmetric)
    places = np.empty(len(order), np.int32)
    places[order] = np.arange(len(order)) // GROUP
    original = np.argsort(order)
    return {
        "qweight": _transposed(_int32(integers[:, original], bits)),
        "qzeros": _int32(zero.T - 1, bits),
        "scales": _f16(scale.T),
        "g_idx": Tensor("I32", places.shape, places),
    }, values[:, original]


def pack_compressed(weight: Float32Array) -> Packed:
    """Pack as ``pack-quantized``, symmetric INT4."""
    integers, _, scale, values = _rounded(weight, 4, symmetric=True)
    shape = Tensor("I64", (2,), np.array(weight.shape))
    return {"weight_packed": _int32(integers, 4), "weight_scale": _f16(scale), "weight_shape": shape}, values


def pack_int8(weight: Float32Array) -> Packed:
    """Store as ``int-quantized``, symmetric INT8 for each output."""
    scale = np.abs(weight).max(axis=1, keepdims=True) / np.float32(127)
    integers = np.rint(weight / scale).astype(np.int8)
    tensors = {
        "weight": Tensor("I8", integers.shape, integers),
        "weight_scale": Tensor.from_float32(scale, "F32"),
    }
    return tensors, integers * scale


def pack_fp8(weight: Float32Array) -> Packed:
    """Store as E4M3 with a scale for each block of 128 x 128."""
    rows, columns = weight.shape
    blocks = -(-rows // GROUP), -(-columns // GROUP)
    padded = np.zeros((blocks[0] * GROUP, blocks[1] * GROUP), np.float32)
    padded[:rows, :columns] = weight
    scale = np.abs(padded.reshape(blocks[0], GROUP, blocks[1], GROUP)).max(axis=(1, 3)) / np.float32(448)
    spread = np.repeat(np.repeat(scale, GROUP, 0), GROUP, 1)[:rows, :columns]
    table = np.nan_to_num(e4m3_values(), nan=1e9)
    order = np.argsort(table)
    middles = (table[order][1:] + table[order][:-1]) / 2
    codes = order[np.searchsorted(middles, weight / spread)].astype(np.uint8)
    tensors = {
        "weight": Tensor("F8_E4M3", codes.shape, codes),
        "weight_scale_inv": Tensor.from_float32(scale, "F32"),
    }
    return tensors, e4m3_values()[codes] * spread


def quantize_checkpoint(
    directory: Path, config: Mapping[str, Any], pack: Callable[[Float32Array], Packed], *kept: str
) -> dict[str, Float32Array]:
    """Quantize the projections of a checkpoint in place, and its output head if it has one.

    Args:
        config: Its ``quantization_config``.
        *kept: Parts of the names of projections that stay in floating point.

    Returns:
        The values of the projections that were quantized, by the name of their weight.
    """
    found: dict[str, Float32Array] = {}

    def change(tensors: dict[str, Tensor]) -> None:
        for name in [name for name in tensors if name.endswith(("_proj.weight", "lm_head.weight"))]:
            if not any(part in name for part in kept):
                packed, found[name] = pack(tensors.pop(name).to_float32())
                tensors.update({f"{name.removesuffix('weight')}{key}": each for key, each in packed.items()})

    change_weights(directory, change)
    change_config(directory, quantization_config=dict(config))
    return found


def pack_mxfp4(weight: Float32Array) -> Packed:
    """Round experts [count, out, in] to MXFP4 as gpt-oss stores them."""
    groups = weight.reshape(*weight.shape[:2], -1, 32)
    exponents = np.floor(np.log2(np.abs(groups).max(axis=3))) - 2  # so that the largest number is 4 to 8
    scale = np.exp2(exponents).astype(np.float32)[..., None]
    numbers = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    codes = np.abs(np.abs(groups / scale)[..., None] - numbers).argmin(axis=-1)
    values = np.copysign(numbers[codes], groups) * scale
    nibbles = (codes | np.signbit(groups) << 3).astype(np.uint8)
    blocks = nibbles[..., ::2] | nibbles[..., 1::2] << 4
    stored = (exponents + 127).astype(np.uint8)
    tensors = {"blocks": Tensor("U8", blocks.shape, blocks), "scales": Tensor("U8", stored.shape, stored)}
    return tensors, values.reshape(weight.shape)
