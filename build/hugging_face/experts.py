"""Read the experts of a layer: their projections, stacked along the outputs of all, and the router."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from build.checkpoints.tensor_file import AnyArray, Tensor
from build.hugging_face.families import ExpertNames
from build.hugging_face.quantized.form import Form
from build.hugging_face.weights import Weights
from build.networks.experts import ExpertSizes
from build.networks.linear import Linear, stack

_Read = Callable[[], Linear]


class ExpertReader:
    """Reads experts of one family.

    Args:
        weights: Tensors of the checkpoint.
        names: Names of the family.
        sizes: Sizes of the experts.
        hidden: Features that they read and write.
        linear: Checks the tensors of a projection by name, outputs and inputs; returns what reads them.
    """

    def __init__(
        self,
        weights: Weights,
        names: ExpertNames,
        sizes: ExpertSizes,
        hidden: int,
        linear: Callable[[str, int, int], _Read],
    ) -> None:
        self._weights, self._names, self._sizes = weights, names, sizes
        self._hidden, self._linear = hidden, linear

    def read(self, layer: str) -> Callable[[], dict[str, Any]]:
        """Check the tensors of a layer's experts, and return the function that reads them.

        Args:
            layer: What the names of the layer's tensors begin with.

        Returns:
            Attributes of ``network.Layer``.

        Raises:
            CheckpointError: A tensor is missing or does not fit the settings; from that function, experts are
                stored in several forms.
        """
        block = f"{layer}{self._names.block}."
        router, experts, shared = self._router(block), self._experts(block), self._shared(block)
        return lambda: {**experts(), "router": Linear(router), "shared": tuple(read() for read in shared)}

    def _router(self, block: str) -> Tensor:
        router = self._weights.take(f"{block}gate.weight", (self._sizes.count, self._hidden))
        if not self._names.has_shared:
            return router
        of_shared = self._weights.take(f"{block}shared_expert_gate.weight", (1, self._hidden))
        return Tensor.from_float32(np.concatenate([router.to_float32(), of_shared.to_float32()]), "F32")

    def _shared(self, block: str) -> list[_Read]:
        if not self._names.has_shared:
            return []
        return [
            self._linear(f"{block}shared_expert.{name}", *self._shape(attribute, self._sizes.shared_size))
            for attribute, name in self._names.projections.items()
        ]

    def _experts(self, block: str) -> Callable[[], dict[str, Linear]]:
        if f"{block}experts.gate_up_proj" in self._weights:
            return self._of_two_tensors(f"{block}experts.")
        reads = {
            attribute: [
                self._linear(
                    f"{block}experts.{index}.{name}", *self._shape(attribute, self._sizes.intermediate_size)
                )
                for index in range(self._sizes.count)
            ]
            for attribute, name in self._names.projections.items()
        }
        return lambda: {
            attribute: self._stacked(block, [read() for read in each]) for attribute, each in reads.items()
        }

    def _of_two_tensors(self, experts: str) -> Callable[[], dict[str, Linear]]:
        """Read experts that are stacked already, gate and up projection of each in one."""
        count, inner, hidden = self._sizes.count, self._sizes.intermediate_size, self._hidden
        gate_up = self._weights.take(f"{experts}gate_up_proj", (count, 2 * inner, hidden))
        down = self._weights.take(f"{experts}down_proj", (count, hidden, inner))

        def stacked(tensor: Tensor, data: AnyArray) -> Linear:
            flat = np.ascontiguousarray(data).reshape(-1, data.shape[2])
            return Linear(Tensor(tensor.dtype, flat.shape, flat))

        def read() -> dict[str, Linear]:
            gate, up = np.split(gate_up.data, 2, axis=1)
            return {
                "fc": stacked(gate_up, gate),
                "gate": stacked(gate_up, up),
                "proj": stacked(down, down.data),
            }

        return read

    def _shape(self, attribute: str, inner: int) -> tuple[int, int]:
        return (self._hidden, inner) if attribute == "proj" else (inner, self._hidden)

    def _stacked(self, block: str, experts: list[Linear]) -> Linear:
        stacked = stack(experts)
        if len(stacked) > 1:
            raise self._weights.fail(f"{block}experts have {len(stacked)} forms, not one for all")
        return stacked[0]


class StackedExpertReader:
    """Reads experts of gpt-oss: a layer has one tensor for each projection of all of them, and biases.

    Columns of gate and up projection alternate. Weights in floating point are stored by input, those of MXFP4
    by output.

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
        read_experts = None if self._form is None else self._form.read_experts
        if read_experts is not None and not self._weights.has_floats(name):
            read = read_experts(self._weights, name, count, outputs, inputs)
        else:
            read = self._by_input(self._weights.take(name, (count, inputs, outputs)))
        return lambda: replace(read(), bias=bias.to_float32().ravel())

    def _by_input(self, weight: Tensor) -> Callable[[], Linear]:
        shape = (weight.shape[0] * weight.shape[2], weight.shape[1])
        return lambda: Linear(Tensor(weight.dtype, shape, weight.data.swapaxes(1, 2).reshape(shape)))
