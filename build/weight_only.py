"""Weight-only INT8, symmetric, one scale per output channel: what TensorRT-LLM calls W8A16."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from build.linear import Linear
from build.network import Layer, Network
from build.tensor_file import Float32Array, Tensor

# Rows that are dequantized at a time bound the float32 scratch memory, vocabulary-sized heads included.
_ROWS_PER_BLOCK = 1024


def quantize_int8(values: Float32Array) -> Linear:
    """Round each row to -127..127 steps of its own size.

    Args:
        values: float32 [out, in].

    Returns:
        I8 weight [out, in] and scale [out, 1] = largest magnitude of the row / 127 (1 for a zero row);
        the error of an element is at most half a step.
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


def _to_int8(linear: Linear) -> Linear:
    if linear.is_weight_only_int8:
        return linear
    return replace(quantize_int8(linear.to_float32()), bias=linear.bias)


def _to_float(linear: Linear) -> Linear:
    if linear.scale is None:
        return linear
    values = linear.to_float32()
    return Linear(Tensor("F32", values.shape, values), bias=linear.bias)


def apply_quantization(network: Network, quantization: str, lm_head: str) -> Network:
    """The network with its projections in the form that a recipe asks for.

    Args:
        network: As read or grown.
        quantization: ``int8``: projections that are not INT8 yet are made so. ``none``: all in
            floating point, quantized ones multiplied out, inputs left alone. Else as the checkpoint says:
            its own form, inputs rounded where it has scales for them, and W8A16 that is still in floating
            point rounded now.
        lm_head: ``int8`` or ``checkpoint``, for the output head alone. The embedding is never touched.
    """

    def convert(linear: Linear) -> Linear:
        if quantization == "none":
            return _to_float(linear)
        make_int8 = quantization == "int8" or network.config.quant_algo == "W8A16"
        return _to_int8(linear) if make_int8 else linear

    def layer(index: int) -> Layer:
        source = network.layer(index)
        return replace(
            source,
            qkv=convert(source.qkv),
            dense=convert(source.dense),
            fc=convert(source.fc),
            gate=convert(source.gate),
            proj=convert(source.proj),
        )

    head = _to_int8(network.lm_head) if lm_head == "int8" else network.lm_head
    return replace(network, lm_head=head, layer=layer)
