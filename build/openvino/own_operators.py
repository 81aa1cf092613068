"""Write attention and projections as operations of our own (``build/operators``).

``operators/attention`` alone knows the layout of its cache; weights have the layout of ``operators/linear``.
"""

from __future__ import annotations

import functools
import tempfile
from dataclasses import replace
from typing import Any

import numpy as np
import openvino as ov
from openvino.utils.node_factory import NodeFactory

from build.checkpoints.tensor_file import AnyArray, Float32Array, Tensor
from build.networks.linear import Linear
from build.networks.network import NetworkConfig
from build.openvino.operations import floats, openvino_product, parameter, stored
from build.operators.library import compiled_library
from pipelines.engine_memory import block_bytes
from pipelines.errors import EngineBuildError

KV_BLOCK_SIZE = 32  # tokens
PANEL = 16
"""Outputs that the products compute together."""

_HEAD_STEP = 16  # features: the kernel's registers
_INPUTS = ("past_lens", "subsequence_begins", "block_indices", "block_indices_begins")
_PANELS_AT_ONCE = 1024
_CHUNKS = {4: 32, 5: 32, 6: 16}  # bits of a weight -> inputs of which a group has a multiple


@functools.cache
def _factory() -> NodeFactory:
    factory = NodeFactory()
    with tempfile.NamedTemporaryFile(suffix=".so") as library:
        library.write(compiled_library())
        library.flush()
        factory.add_extension(library.name)
    return factory


def own_operation(name: str, arguments: list[Any], attributes: dict[str, Any]) -> Any:
    """Return the output of an operation, which is compiled if this process has not done so yet.

    Raises:
        EngineBuildError: There is no compiler, or it failed.
    """
    return _factory().create(name, arguments, attributes).output(0)


def own_product(x: Any, weights: Linear) -> Any:
    """Multiply the last axis of x with a weight, without its bias.

    Our operation multiplies integers. It rounds x to 14 bits of a token's largest number; for weights of
    fewer than 8 bits, to 8 bits of the largest number of each block of at most 256. Floats are multiplied by
    OpenVINO.

    Raises:
        EngineBuildError: These integers are not multiplied by our operation.
    """
    if not weights.is_integer:
        return openvino_product(x, weights)
    constants, attributes = integer_weight(weights)
    return own_operation("Linear", [x, *constants], {**attributes, "num_outputs": weights.weight.shape[0]})


def integer_weight(weights: Linear) -> tuple[list[Any], dict[str, int]]:
    """Return the constants and the attributes that describe integers to our operations.

    Raises:
        EngineBuildError: These integers are not multiplied by our operations.
    """
    weights = _without_zero_points(weights)
    _check(weights)
    numbers, units, levels = arranged(weights)
    if units.dtype == np.float16:
        units = units.view(np.uint8)  # as floats, OpenVINO would make them float32
    constants = [stored(Tensor("U8", numbers.shape, numbers))]
    constants.append(floats(units) if units.dtype == np.float32 else stored(Tensor("U8", units.shape, units)))
    if levels is not None:
        constants.append(stored(Tensor("I8", levels.shape, levels)))
    return constants, {"num_bits": weights.bits, "num_groups": _num_groups(weights)}


def _without_zero_points(weights: Linear) -> Linear:
    """Return the same values with signed integers if all zero points are in the middle, or with offsets."""
    if weights.zero_point is None or weights.scale is None:
        return weights
    middle = 1 << weights.bits - 1
    if (weights.zero_point != middle).any():
        offset = -weights.zero_point.astype(np.float32) * weights.scale
        return replace(weights, zero_point=None, offset=offset)
    signed = (weights.weight.data - np.uint8(middle)).view(np.int8)
    return replace(weights, zero_point=None, weight=Tensor("I8", signed.shape, signed))


def _num_groups(weights: Linear) -> int:
    return 1 if weights.scale is None else weights.scale.shape[1]


def _check(weights: Linear) -> None:
    num_inputs, num_groups, bits = weights.weight.shape[1], _num_groups(weights), weights.bits
    is_unsigned = bits < 8 and weights.offset is not None
    multiple = _CHUNKS.get(bits, 1 if num_groups == 1 else 2)
    problems = {
        "8-bit integers with zero points or offsets": bits == 8 and weights.offset is not None,
        f"{bits}-bit integers, {weights.weight.dtype}": (weights.weight.dtype == "U8") != is_unsigned,
        "inputs that the checkpoint rounds": weights.input_quantization is not None,
        f"{num_groups} groups of {num_inputs} inputs, {bits} bits": num_inputs % (multiple * num_groups) > 0,
    }
    found = [problem for problem, is_found in problems.items() if is_found]
    if found:
        raise EngineBuildError(
            f"products of our own cannot multiply the integers of this checkpoint: {', '.join(found)}; they "
            "need inputs in floating point, groups of a multiple of 32 inputs (6 bits: 16, 8 bits: 2), zero "
            "points of 4 to 6 bits",
            "set 'linear: openvino' in the recipe",
        )


def arranged(weights: Linear) -> tuple[AnyArray, AnyArray, AnyArray | None]:
    """Arrange integers and scales as ``linear/kernel.h`` describes.

    Returns:
        uint8 [panels, bytes of a panel], float16 or float32 [panels, kinds, units, 16], and int8 [panels,
        kinds, units, pairs of groups, 16, 2] if the scales are levels of these units.
    """
    integers = weights.weight.data
    num_panels = -(-len(integers) // PANEL)
    panel_bytes = (
        (integers.shape[1] + integers.shape[1] % 2 * (weights.bits == 8)) * PANEL * weights.bits // 8
    )
    numbers = np.empty((num_panels, panel_bytes), np.uint8)
    for begin in range(0, num_panels, _PANELS_AT_ONCE):  # a large head would need a multiple of its size
        some = integers[begin * PANEL : (begin + _PANELS_AT_ONCE) * PANEL]
        numbers[begin : begin + _PANELS_AT_ONCE] = (
            _in_pairs(some) if weights.bits == 8 else _in_quads(some, weights.bits)
        )
    units, levels = weights.short_scales()
    return (
        numbers,
        _by_panel(units),
        None if levels is None else _level_pairs(_by_panel(levels), units.shape[2]),
    )


def _by_panel(values: AnyArray) -> AnyArray:
    """Return [outputs, kinds, n] as [panels, kinds, n, 16]."""
    num_panels = -(-len(values) // PANEL)
    padded = np.zeros((num_panels * PANEL, *values.shape[1:]), values.dtype)
    padded[: len(values)] = values
    panels = padded.reshape(num_panels, PANEL, *values.shape[1:])
    return np.ascontiguousarray(panels.transpose(0, 2, 3, 1))


def _level_pairs(levels: AnyArray, num_units: int) -> AnyArray:
    """Return [panels, kinds, groups, 16] as [panels, kinds, units, pairs, 16, 2]."""
    num_panels, kinds, num_groups, _ = levels.shape
    of_units = levels.reshape(num_panels, kinds, num_units, num_groups // num_units, PANEL)
    if of_units.shape[3] % 2:
        of_units = np.pad(of_units, ((0, 0), (0, 0), (0, 0), (0, 1), (0, 0)))
    pairs = of_units.reshape(num_panels, kinds, num_units, -1, 2, PANEL)
    return np.ascontiguousarray(pairs.swapaxes(4, 5))


def _panels(integers: AnyArray, neighbours: int) -> AnyArray:
    """Return [outputs, inputs], with zeros at the end, as uint8 [panels, n, 16, neighbours]."""
    outputs, inputs = integers.shape
    padding = ((0, -outputs % PANEL), (0, -inputs % neighbours))
    padded = np.pad(integers, padding) if np.any(padding) else integers
    parts = padded.view(np.uint8).reshape(-1, PANEL, padded.shape[1] // neighbours, neighbours)
    return np.ascontiguousarray(parts.transpose(0, 2, 1, 3))


def _in_pairs(integers: AnyArray) -> AnyArray:
    panels = _panels(integers, 2)
    return panels.reshape(len(panels), -1)


def _in_quads(integers: AnyArray, bits: int) -> AnyArray:
    if integers.dtype == np.int8:
        integers = (integers + np.int8(1 << bits - 1)).view(np.uint8)
    quads = _panels(integers, 4)
    quads = quads.reshape(len(quads), quads.shape[1], 4 * PANEL)
    low = quads & 15
    low = low[..., : 2 * PANEL] | low[..., 2 * PANEL :] << 4
    of_chunk = _CHUNKS[bits] // 4
    low = low.reshape(len(low), -1, of_chunk * 2 * PANEL)
    if bits == 4:
        return np.reshape(low, (len(low), -1))
    parts = (quads >> 4).reshape(len(low), -1, of_chunk, 4 * PANEL)
    shifts = np.arange(of_chunk, dtype=np.uint8) * np.uint8(bits - 4)
    high: AnyArray = np.bitwise_or.reduce(parts << shifts[:, np.newaxis], axis=2, dtype=np.uint8)
    return np.reshape(np.concatenate([high, low], axis=2), (len(low), -1))


class OwnAttention:
    """Attention of our own over caches of bytes.

    Args:
        config: Settings of the network.
        kv_cache_dtype: ``float32``, ``float16`` or ``int8``.

    Raises:
        EngineBuildError: The kernel does not know the size of the heads.
    """

    def __init__(self, config: NetworkConfig, kv_cache_dtype: str) -> None:
        if config.head_size % _HEAD_STEP:
            raise EngineBuildError(
                f"the attention operator computes heads of multiples of {_HEAD_STEP}, not "
                f"head_size={config.head_size}",
                "set 'attention: openvino' in the recipe"
                if config.own_attention_reason is None
                else f"use another model: only this operator computes {config.own_attention_reason}",
            )
        self._config = config
        self._dtype = kv_cache_dtype

    def cache(self, name: str) -> Any:
        """Return the input for the keys, or the values, of a layer."""
        config = self._config
        sizes = (config.num_key_value_heads, config.head_size, self._dtype)
        keys_and_values = block_bytes(KV_BLOCK_SIZE, 1, *sizes)
        return parameter(name, [-1, keys_and_values // 2], ov.Type.u8)

    def attend(
        self,
        query_key_value: list[Any],
        caches: list[Any],
        inputs: dict[str, Any],
        window: int,
        sinks: Float32Array | None,
    ) -> Any:
        """See ``paged_attention.PagedAttention.attend``."""
        config = self._config
        arguments = [*query_key_value, *caches, *(inputs[name] for name in _INPUTS)]
        if sinks is not None:
            arguments.append(floats(sinks))
        attributes = {
            "num_heads": config.num_attention_heads,
            "num_kv_heads": config.num_key_value_heads,
            "head_size": config.head_size,
            "scale": float(config.attention_scale),
            "softcap": config.attention_softcap or 0.0,
            "window": window,
            "kv_cache_dtype": self._dtype,
        }
        return own_operation("Attention", arguments, attributes)
