"""Write attention and projections as operations of our own (``build/operators``).

``operators/attention`` alone knows the layout of its cache; weights have the layout of ``operators/linear``.
"""

from __future__ import annotations

import functools
import tempfile
from typing import Any

import numpy as np
import openvino as ov
from openvino.utils.node_factory import NodeFactory

from build.checkpoints.tensor_file import AnyArray, Tensor
from build.networks.linear import Linear
from build.networks.network import NetworkConfig
from build.openvino.operations import floats, openvino_product, parameter, stored
from build.operators.library import compiled_library
from pipelines.engine_memory import block_bytes
from pipelines.errors import EngineBuildError

KV_BLOCK_SIZE = 32  # tokens
_HEAD_STEP = 16  # features: the kernel's registers
_INPUTS = ("past_lens", "subsequence_begins", "block_indices", "block_indices_begins")
_PANEL = 16  # outputs that the kernel computes together


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

    Our operation multiplies integers, and rounds x to 14 bits of a token's largest number. Floats are
    multiplied by OpenVINO.

    Raises:
        EngineBuildError: These integers are not multiplied by our operation.
    """
    if not weights.is_integer:
        return openvino_product(x, weights)
    _check(weights)
    numbers, units, levels = arranged(weights)
    if units.dtype == np.float16:
        units = units.view(np.uint8)  # as floats, OpenVINO would make them float32
    arguments = [x, stored(Tensor("U8", numbers.shape, numbers))]
    arguments.append(floats(units) if units.dtype == np.float32 else stored(Tensor("U8", units.shape, units)))
    if levels is not None:
        arguments.append(stored(Tensor("I8", levels.shape, levels)))
    attributes = {"num_outputs": weights.weight.shape[0], "num_bits": weights.bits}
    return own_operation("Linear", arguments, attributes)


def _check(weights: Linear) -> None:
    num_inputs, num_groups = weights.weight.shape[1], 1 if weights.scale is None else weights.scale.shape[1]
    is_unsigned = weights.bits == 4 and weights.offset is not None
    problems = {
        "zero points": weights.zero_point is not None,
        f"{weights.bits}-bit integers, {weights.weight.dtype}": (weights.weight.dtype == "U8") != is_unsigned,
        "inputs that the checkpoint rounds": weights.input_quantization is not None,
        f"{num_groups} groups of {num_inputs} inputs": num_groups > 1 and num_inputs % (2 * num_groups) > 0,
    }
    found = [problem for problem, is_found in problems.items() if is_found]
    if found:
        raise EngineBuildError(
            "products of our own cannot multiply the integers of this checkpoint",
            values=", ".join(found),
            limit="no zero points, inputs in floating point, groups of an even size",
            remedy="set 'linear: openvino' in the recipe",
        )


def arranged(weights: Linear) -> tuple[AnyArray, AnyArray, AnyArray | None]:
    """Arrange integers and scales as ``linear/kernel.h`` describes.

    Returns:
        uint8 [panels, bytes of a panel], float16 or float32 [panels, kinds, units, 16], and int8 [panels,
        kinds, groups, 16] if the scales are levels of these units.
    """
    integers = weights.weight.data
    outputs, inputs = integers.shape
    num_panels, num_pairs = -(-outputs // _PANEL), -(-inputs // 2)
    padding = ((0, num_panels * _PANEL - outputs), (0, num_pairs * 2 - inputs))
    padded = np.pad(integers, padding) if np.any(padding) else integers  # without a copy of a large head
    panels = padded.view(np.uint8).reshape(num_panels, _PANEL, num_pairs, 2).transpose(0, 2, 1, 3)
    numbers = np.ascontiguousarray(panels).reshape(num_panels, num_pairs, 2 * _PANEL)
    if weights.bits == 4:
        if weights.offset is None:
            numbers = numbers + np.uint8(8) & 15
        numbers = numbers[..., :_PANEL] | numbers[..., _PANEL:] << 4

    def by_panel(values: AnyArray) -> AnyArray:
        padded = np.zeros((num_panels * _PANEL, *values.shape[1:]), values.dtype)
        padded[:outputs] = values
        return np.ascontiguousarray(
            padded.reshape(num_panels, _PANEL, *values.shape[1:]).transpose(0, 2, 3, 1)
        )

    units, levels = weights.short_scales()
    numbers = numbers.reshape(num_panels, -1)
    return numbers, by_panel(units), None if levels is None else by_panel(levels)


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
                "the attention operator cannot compute heads of this size",
                values=f"head_size={config.head_size}",
                limit=f"multiples of {_HEAD_STEP}",
                remedy="set 'attention: openvino' in the recipe"
                if config.attention_softcap is None
                else "use another model: only this operator caps attention scores",
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
        self, query_key_value: list[Any], caches: list[Any], inputs: dict[str, Any], window: int
    ) -> Any:
        """See ``paged_attention.PagedAttention.attend``."""
        config = self._config
        arguments = [*query_key_value, *caches, *(inputs[name] for name in _INPUTS)]
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
