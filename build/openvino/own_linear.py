"""Write projections as our operation, with weights in the layout of ``build/operators/linear``."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from build.checkpoints.tensor_file import Tensor
from build.networks.linear import Linear
from build.openvino.operations import floats, openvino_product, stored
from build.openvino.own_operators import own_operation

_PANEL = 16  # outputs that the kernel computes together


def own_product(x: Any, weights: Linear) -> Any:
    """Multiply the last axis of x with a weight, without its bias.

    Our operation multiplies weights of 8-bit integers with one scale for each output. It rounds x to 14 bits
    of a token's largest number. OpenVINO multiplies all other weights, and those whose x is rounded already.
    """
    if not weights.has_plain_int8_weight or weights.input_quantization is not None:
        return openvino_product(x, weights)
    assert weights.scale is not None
    panels, scale = arranged(weights.weight.data, weights.scale.reshape(-1))
    arguments = [x, stored(Tensor("I8", panels.shape, panels)), floats(scale)]
    return own_operation("Linear", arguments, {"num_outputs": weights.weight.shape[0]})


def arranged(
    weight: npt.NDArray[np.int8], scale: npt.NDArray[np.float32]
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Arrange a weight as ``linear/kernel.h`` describes.

    Args:
        weight: int8 [out, in].
        scale: float32 [out].

    Returns:
        int8 [panels, bytes of a panel] and float32 [panels * 16].
    """
    outputs, inputs = weight.shape
    num_panels, num_pairs = -(-outputs // _PANEL), -(-inputs // 2)
    padded = np.zeros((num_panels * _PANEL, num_pairs * 2), np.int8)
    padded[:outputs, :inputs] = weight
    scales = np.zeros(num_panels * _PANEL, np.float32)
    scales[:outputs] = scale
    panels = padded.reshape(num_panels, _PANEL, num_pairs, 2).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(panels).reshape(num_panels, -1), scales
