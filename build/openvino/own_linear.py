"""Write projections as our operation, with weights in the layout of ``build/operators/linear``."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from build.checkpoints.tensor_file import Float32Array, Tensor
from build.networks.linear import Linear
from build.openvino.operations import floats, openvino_product, stored
from build.openvino.own_operators import own_operation
from pipelines.errors import EngineBuildError

_PANEL = 16  # outputs that the kernel computes together


def own_product(x: Any, weights: Linear) -> Any:
    """Multiply the last axis of x with a weight, without its bias.

    Our operation multiplies integers, and rounds x to 14 bits of a token's largest number. Floats are
    multiplied by OpenVINO.

    Raises:
        EngineBuildError: These integers are not multiplied by our operation.
    """
    if not weights.is_integer or weights.scale is None:
        return openvino_product(x, weights)
    _check(weights)
    numbers, scale = arranged(weights.weight.data, weights.scale, weights.bits)
    arguments = [x, stored(Tensor("U8", numbers.shape, numbers)), floats(scale)]
    attributes = {"num_outputs": weights.weight.shape[0], "num_bits": weights.bits}
    return own_operation("Linear", arguments, attributes)


def _check(weights: Linear) -> None:
    num_inputs, num_groups = weights.weight.shape[1], 1 if weights.scale is None else weights.scale.shape[1]
    problems = {
        "zero points": not weights.is_symmetric_integer,
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


def arranged(
    weight: npt.NDArray[np.int8], scale: Float32Array, bits: int
) -> tuple[npt.NDArray[np.uint8], Float32Array]:
    """Arrange a weight as ``linear/kernel.h`` describes.

    Args:
        weight: int8 [out, in].
        scale: float32 [out, groups].
        bits: 8, or 4 for numbers in -8..7.

    Returns:
        uint8 [panels, bytes of a panel] and float32 [panels, groups, 16].
    """
    outputs, inputs = weight.shape
    num_panels, num_pairs = -(-outputs // _PANEL), -(-inputs // 2)
    padding = ((0, num_panels * _PANEL - outputs), (0, num_pairs * 2 - inputs))
    padded = np.pad(weight, padding) if np.any(padding) else weight  # without a copy of a large head
    panels = padded.reshape(num_panels, _PANEL, num_pairs, 2).transpose(0, 2, 1, 3)
    numbers = np.ascontiguousarray(panels).reshape(num_panels, num_pairs, 2 * _PANEL)
    if bits == 4:
        numbers = numbers[..., :_PANEL] & 15 | numbers[..., _PANEL:] << 4
    scales = np.zeros((num_panels * _PANEL, scale.shape[1]), np.float32)
    scales[:outputs] = scale
    grouped = scales.reshape(num_panels, _PANEL, -1).transpose(0, 2, 1)
    return numbers.view(np.uint8).reshape(num_panels, -1), np.ascontiguousarray(grouped)
