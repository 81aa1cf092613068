"""Quantize weights symmetrically and without calibration.

INT8 has one scale per output channel (W8A16 in TensorRT-LLM). INT4 has one for each group of inputs, chosen
for a small squared error of the weights (docs/decisions/quantization.md). Integers of a checkpoint that are
as small stay as they are.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from build.checkpoints.tensor_file import Float32Array, Tensor
from build.networks.linear import Linear
from build.networks.network import Network

# Processing blocks of rows limits the float32 scratch memory, also for vocabulary-sized heads.
_ROWS_PER_BLOCK = 1024
_GROUP_SIZES = (128, 64, 32)  # the largest that divides the inputs
_INT4_SCALES = (1.0, 0.95, 0.9, 0.85, 0.8)  # tried, as shares of the scale that cuts off nothing


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


def quantize_int4(values: Float32Array, group_size: int) -> Linear:
    """Quantize each group of inputs to -8..7 with its own scale.

    Args:
        values: float32 [out, in]; ``in`` is a multiple of ``group_size``.
        group_size: Inputs that share a scale.

    Returns:
        I8 weight [out, in] in -8..7 and scale [out, in / group_size]. With the largest scale, the value of
        largest magnitude becomes -8, so that all sixteen codes are in use. A smaller one is chosen where the
        sum of squared errors of the group is smaller, although the largest values are cut off then.
    """
    weight = np.empty(values.shape, np.int8)
    scale = np.empty((values.shape[0], values.shape[1] // group_size), np.float32)
    for start in range(0, values.shape[0], _ROWS_PER_BLOCK):
        rows = slice(start, start + _ROWS_PER_BLOCK)
        groups = values[rows].reshape(-1, scale.shape[1], group_size)
        codes, scale[rows] = _quantize_groups(groups)
        weight[rows] = codes.reshape(len(groups), -1)
    return Linear(Tensor("I8", weight.shape, weight), scale, bits=4)


def _quantize_groups(groups: Float32Array) -> tuple[npt.NDArray[np.int8], Float32Array]:
    """Return codes and scales of [rows, groups, size]: of all scales that are tried, the closest."""
    highest, lowest = groups.max(axis=2), groups.min(axis=2)
    largest = np.where(highest > -lowest, highest, lowest)  # with its sign
    full = np.where(largest != 0, largest / np.float32(-8), np.float32(1)).astype(np.float32)
    codes, scales = np.zeros(groups.shape, np.int8), full.copy()
    least_error = np.full(full.shape, np.inf, np.float32)
    for share in _INT4_SCALES:
        tried = full * np.float32(share)
        scaled = groups / tried[:, :, None]
        np.rint(scaled, out=scaled)
        np.clip(scaled, -8, 7, out=scaled)
        errors = scaled * tried[:, :, None] - groups
        error = np.einsum("rgi,rgi->rg", errors, errors)
        is_closer = error < least_error
        np.copyto(codes, scaled, where=is_closer[:, :, None], casting="unsafe")
        np.copyto(scales, tried, where=is_closer)
        np.copyto(least_error, error, where=is_closer)
    return codes, scales


def _to_int4(linear: Linear) -> Linear:
    if linear.is_integer and linear.bits == 4:
        return linear
    group = next((size for size in _GROUP_SIZES if linear.weight.shape[1] % size == 0), None)
    if group is None:
        return _to_int8(linear)
    return replace(quantize_int4(linear.to_float32(), group), bias=linear.bias)


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
        lm_head: ``int8`` or ``checkpoint``, for the output head. The embedding is never quantized.
    """

    def convert(linear: Linear) -> Linear:
        if quantization == "none":
            return _to_float(linear)
        if quantization == "int4":
            return _to_int4(linear)
        make_int8 = quantization == "int8" or network.config.quant_algo == "W8A16"
        return _to_int8(linear) if make_int8 else linear

    head = _to_int8(network.lm_head) if lm_head == "int8" else network.lm_head
    return replace(network, lm_head=head, layer=lambda index: network.layer(index).with_linears(convert))
