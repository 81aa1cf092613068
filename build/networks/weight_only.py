"""Quantize weights without calibration.

INT8 has one scale per output channel (W8A16 in TensorRT-LLM). INT4 has a scale and an offset for each group
of inputs, chosen for a small squared error of the weights (docs/decisions/models.md). Integers of a
checkpoint that are as small stay as they are.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from build.checkpoints.tensor_file import Float32Array, Tensor
from build.networks.linear import Linear
from build.networks.network import Network

# Blocks of rows limit the float32 scratch memory. Those of INT4 belong to threads, which would wait for each
# other between operations on smaller ones: with 1 << 16 numbers, two threads took twice as long.
_ROWS_PER_BLOCK = 1024
_NUMBERS_PER_BLOCK = 1 << 19
GROUP_SIZE = 32
"""Inputs that share a scale and an offset in INT4."""
_MOST_GROUPS_OF_A_UNIT = 8
_LARGEST_LEVEL = 127
_STEPS = (13.0, 14.0, 14.7, 15.4, 16.2)  # tried: steps between the least and the largest number of a group


def quantize_int8(values: Float32Array) -> Linear:
    """Quantize each row to -127..127 with its own scale.

    Args:
        values: float32 [out, in].

    Returns:
        I8 weight [out, in] and scale [out, 1]. The scale is the largest magnitude of the row / 127 (1 for a
        zero row); the error of an element is at most half of it.
    """
    weight = np.empty(values.shape, np.int8)
    scale = np.empty((values.shape[0], 1), np.float32)
    for start in range(0, values.shape[0], _ROWS_PER_BLOCK):
        rows = slice(start, start + _ROWS_PER_BLOCK)
        block = values[rows]
        largest = np.maximum(block.max(axis=1, keepdims=True), -block.min(axis=1, keepdims=True))
        step = np.where(largest > 0, largest / np.float32(127), np.float32(1)).astype(np.float32)
        scaled = block / step
        np.rint(scaled, out=scaled)
        np.clip(scaled, -127, 127, out=scaled)
        weight[rows], scale[rows] = scaled, step
    return Linear(Tensor("I8", weight.shape, weight), scale)


def quantize_int4(values: Float32Array) -> Linear:
    """Quantize each group of 32 inputs to 0..15 with its own scale and offset.

    Args:
        values: float32 [out, in]; ``in`` is a multiple of 32.

    Returns:
        U8 weight [out, in] in 0..15, scale and offset [out, in / 32]. Both are whole multiples of float16
        units, which up to eight groups share. Several sizes of a step are tried; the codes of each decide a
        scale and an offset by least squares, as in llama.cpp's Q4_K, and the closest is taken.
    """
    outputs, inputs = values.shape
    num_groups = inputs // GROUP_SIZE
    shared = max(size for size in range(1, _MOST_GROUPS_OF_A_UNIT + 1) if num_groups % size == 0)
    weight = np.empty(values.shape, np.uint8)
    scale, offset = (np.empty((outputs, num_groups), np.float32) for _ in range(2))
    units = np.empty((outputs, 2, num_groups // shared), np.float32)
    rows_per_block = max(1, _NUMBERS_PER_BLOCK // inputs)

    def quantize(start: int) -> None:
        rows = slice(start, start + rows_per_block)
        numbers = np.ascontiguousarray(values[rows].reshape(-1, GROUP_SIZE).T)  # [32, groups], for fast sums
        scales, offsets = _closest(numbers)
        scales, scale_units = _in_levels(scales, shared)
        codes = _codes(numbers, scales, offsets)
        offsets, offset_units = _in_levels((numbers - codes * scales).mean(axis=0), shared)
        codes = _codes(numbers, scales, offsets)
        shape = (-1, num_groups)
        weight[rows] = codes.T.reshape(-1, inputs)
        scale[rows], offset[rows] = scales.reshape(shape), offsets.reshape(shape)
        units[rows] = np.stack(
            [each.reshape(len(weight[rows]), -1) for each in (scale_units, offset_units)], 1
        )

    with ThreadPoolExecutor() as pool:
        list(pool.map(quantize, range(0, outputs, rows_per_block)))
    return Linear(Tensor("U8", weight.shape, weight), scale, bits=4, offset=offset, units=units)


def _closest(numbers: Float32Array) -> tuple[Float32Array, Float32Array]:
    """Return the scale and offset of each group [32, groups] whose squared error is least."""
    lowest = numbers.min(axis=0)
    above = numbers - lowest
    span = above.max(axis=0)
    sums, squares = above.sum(axis=0), np.square(above).sum(axis=0)
    scales, offsets, least = span / np.float32(15), np.zeros_like(span), np.full_like(span, np.inf)
    codes, products = np.empty_like(above), np.empty_like(above)
    for steps in _STEPS:
        np.multiply(above, _ratio(np.float32(steps), span), out=codes)
        np.minimum(np.rint(codes, out=codes), 15, out=codes)
        code_sums = codes.sum(axis=0)
        code_squares = np.multiply(codes, codes, out=products).sum(axis=0)
        mixed = np.multiply(codes, above, out=products).sum(axis=0)
        spread = GROUP_SIZE * code_squares - np.square(code_sums)
        scale = _ratio(GROUP_SIZE * mixed - sums * code_sums, spread)
        offset = _ratio(code_squares * sums - code_sums * mixed, spread)
        error = squares - scale * mixed - offset * sums
        is_closer = (error < least) & (spread > 0)
        for best, found in ((scales, scale), (offsets, offset), (least, error)):
            np.copyto(best, found, where=is_closer)
    return scales, offsets + lowest


def _in_levels(values: Float32Array, shared: int) -> tuple[Float32Array, Float32Array]:
    """Round the numbers of groups to multiples of units, of which each is shared by so many groups."""
    units = np.abs(values.reshape(-1, shared)).max(axis=1) / np.float32(_LARGEST_LEVEL)
    units = units.astype(np.float16).astype(np.float32)
    each = np.repeat(units, shared)
    levels = np.rint(_ratio(values, each)).clip(-_LARGEST_LEVEL, _LARGEST_LEVEL)
    return levels * each, units


def _codes(numbers: Float32Array, scales: Float32Array, offsets: Float32Array) -> Float32Array:
    codes: Float32Array = (numbers - offsets) * _ratio(np.float32(1), scales)
    np.rint(codes, out=codes)
    return np.clip(codes, 0, 15, out=codes)


def _ratio(above: Float32Array | np.float32, below: Float32Array) -> Float32Array:
    """Divide; by 0, the result is 0."""
    return np.divide(above, below, out=np.zeros_like(below), where=below != 0)


def _to_int4(linear: Linear) -> Linear:
    if linear.is_integer and linear.bits == 4:
        return linear
    if linear.weight.shape[1] % GROUP_SIZE:
        return _to_int8(linear)
    return replace(quantize_int4(linear.to_float32()), bias=linear.bias)


def _to_int8(linear: Linear) -> Linear:
    if linear.is_weight_only:
        return linear
    return replace(quantize_int8(linear.to_float32()), bias=linear.bias)


def _to_float(linear: Linear) -> Linear:
    if linear.scale is None:
        return linear
    values = linear.to_float32()
    return Linear(Tensor("F32", values.shape, values), bias=linear.bias)


def apply_quantization(network: Network, quantization: str, lm_head: str) -> Network:
    """Return the network with its projections quantized as a recipe asks for.

    Args:
        network: As read or grown.
        quantization: ``int8``: quantize projections unless they are integers with unchanged inputs already.
            ``int4``: quantize them unless they have 4 bits already; those whose inputs cannot be divided into
            groups become INT8. ``none``: dequantize all projections, and do not round inputs. Otherwise keep
            the quantization of the checkpoint: inputs are rounded where it has scales for them, and W8A16
            weights that are still floating point are quantized now.
        lm_head: ``int8``, ``int4`` or ``checkpoint``, for the output head. The embedding is never quantized.
    """

    def convert(linear: Linear) -> Linear:
        if quantization == "none":
            return _to_float(linear)
        if quantization == "int4":
            return _to_int4(linear)
        make_int8 = quantization == "int8" or network.config.quant_algo == "W8A16"
        return _to_int8(linear) if make_int8 else linear

    to_integers = {"int8": _to_int8, "int4": _to_int4}.get(lm_head)
    head = to_integers(network.lm_head) if to_integers else network.lm_head
    fusion = network.fusion and replace(network.fusion, fc=convert(network.fusion.fc))
    return replace(
        network, lm_head=head, layer=lambda index: network.layer(index).with_linears(convert), fusion=fusion
    )
