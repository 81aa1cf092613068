"""Read experts of gpt-oss: a layer has one tensor for each projection of all of them, and biases.

Columns of gate and up projection alternate. Weights in floating point are stored by input, those of MXFP4 by
output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from build.checkpoints.tensor_file import Tensor
from build.hugging_face.quantized.form import Form
from build.hugging_face.quantized.mxfp4 import Mxfp4
from build.hugging_face.weights import Weights
from build.networks.experts import ExpertSizes
from build.networks.linear import Linear


class StackedExpertReader:
    """Reads experts that are stacked.

    Args:
        weights: Tensors of the checkpoint.
        sizes: Sizes of the experts.
        hidden: Features that they read and write.
        form: Form of the checkpoint's quantized projections; None if it has none.
    """

    def __init__(self, weights: Weights, sizes: ExpertSizes, hidden: int, form: Form | None) -> None:
        self._weights, self._sizes, self._hidden, self._form = weights, sizes, hidden, form

    def read(self, layer: str) -> Callable[[], dict[str, Any]]:
        """See ``ExpertReader.read``."""
        block, count, hidden = f"{layer}mlp.", self._sizes.count, self._hidden
        inner = self._sizes.intermediate_size
        router = self._weights.take(f"{block}router.weight", (count, hidden))
        router_bias = self._weights.take(f"{block}router.bias", (count,))
        gate_and_up = self._projection(f"{block}experts.gate_up_proj", 2 * inner, hidden)
        down = self._projection(f"{block}experts.down_proj", hidden, inner)

        def experts() -> dict[str, Any]:
            both, columns = gate_and_up(), np.arange(2 * inner * count)
            return {
                "router": Linear(router, bias=router_bias.to_float32()),
                "fc": both.rows(columns[::2]),
                "gate": both.rows(columns[1::2]),
                "proj": down(),
            }

        return experts

    def _projection(self, name: str, outputs: int, inputs: int) -> Callable[[], Linear]:
        """Check a projection of all experts, and return the function that reads it."""
        count = self._sizes.count
        bias = self._weights.take(f"{name}_bias", (count, outputs))
        if isinstance(self._form, Mxfp4) and not self._weights.has_floats(name):
            read = self._form.read_experts(self._weights, name, count, outputs, inputs)
        else:
            read = self._by_input(self._weights.take(name, (count, inputs, outputs)))
        return lambda: replace(read(), bias=bias.to_float32().ravel())

    def _by_input(self, weight: Tensor) -> Callable[[], Linear]:
        shape = (weight.shape[0] * weight.shape[2], weight.shape[1])
        return lambda: Linear(Tensor(weight.dtype, shape, weight.data.swapaxes(1, 2).reshape(shape)))
