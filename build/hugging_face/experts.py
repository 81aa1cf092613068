"""Read the experts of a layer: their projections, stacked along the outputs of all, and the router."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from build.checkpoints.tensor_file import AnyArray, Tensor
from build.hugging_face.families import ExpertNames
from build.hugging_face.quantized.form import Form
from build.hugging_face.weights import Weights
from build.networks.experts import ExpertSizes
from build.networks.linear import Linear, stack

_Read = Callable[[], Linear]
_Linears = Callable[[str, int, int], _Read]


def read_experts(
    weights: Weights, names: ExpertNames, sizes: ExpertSizes, hidden: int, linear: _Linears, layer: str
) -> Callable[[], dict[str, Any]]:
    """Check the tensors of a layer's experts, and return the function that reads them.

    Args:
        weights: Tensors of the checkpoint.
        names: Names of the family.
        sizes: Sizes of the experts.
        hidden: Features that they read and write.
        linear: Checks the tensors of a projection by name, outputs and inputs; returns what reads them.
        layer: What the names of the layer's tensors begin with.

    Returns:
        Attributes of ``network.Layer``.

    Raises:
        CheckpointError: A tensor is missing or does not fit the settings; from that function, experts are
            stored in several forms.
    """
    block = f"{layer}{names.block}."

    def projection(attribute: str, name: str, inner: int) -> _Read:
        shape = (hidden, inner) if attribute == "proj" else (inner, hidden)
        return linear(f"{block}{name}", *shape)

    router = weights.take(f"{block}gate.weight", (sizes.count, hidden))
    shared: list[_Read] = []
    if names.has_shared:
        gate = weights.take(f"{block}shared_expert_gate.weight", (1, hidden))
        router = Tensor.from_float32(np.concatenate([router.to_float32(), gate.to_float32()]), "F32")
        shared = [
            projection(attribute, f"shared_expert.{name}", sizes.shared_size)
            for attribute, name in names.projections.items()
        ]
    if f"{block}experts.gate_up_proj" in weights:
        experts = _of_two_tensors(weights, sizes, hidden, f"{block}experts.")
    else:
        reads = {
            attribute: [
                projection(attribute, f"experts.{index}.{name}", sizes.intermediate_size)
                for index in range(sizes.count)
            ]
            for attribute, name in names.projections.items()
        }

        def experts() -> dict[str, Linear]:
            return {key: _stacked(weights, block, [read() for read in each]) for key, each in reads.items()}

    return lambda: {**experts(), "router": Linear(router), "shared": tuple(read() for read in shared)}


def _of_two_tensors(
    weights: Weights, sizes: ExpertSizes, hidden: int, experts: str
) -> Callable[[], dict[str, Linear]]:
    """Read experts that are stacked already, gate and up projection of each in one."""
    count, inner = sizes.count, sizes.intermediate_size
    gate_up = weights.take(f"{experts}gate_up_proj", (count, 2 * inner, hidden))
    down = weights.take(f"{experts}down_proj", (count, hidden, inner))

    def stacked(tensor: Tensor, data: AnyArray) -> Linear:
        flat = np.ascontiguousarray(data).reshape(-1, data.shape[2])
        return Linear(Tensor(tensor.dtype, flat.shape, flat))

    def read() -> dict[str, Linear]:
        gate, up = np.split(gate_up.data, 2, axis=1)
        return {"fc": stacked(gate_up, gate), "gate": stacked(gate_up, up), "proj": stacked(down, down.data)}

    return read


def _stacked(weights: Weights, block: str, experts: list[Linear]) -> Linear:
    stacked = stack(experts)
    if len(stacked) > 1:
        raise weights.fail(f"{block}experts have {len(stacked)} forms, not one for all")
    return stacked[0]


def read_stacked_experts(
    weights: Weights, sizes: ExpertSizes, hidden: int, form: Form | None, layer: str
) -> Callable[[], dict[str, Any]]:
    """Do the same with experts of gpt-oss: a layer has one tensor for each projection of all, and biases.

    Columns of gate and up projection alternate. Weights in floating point are stored by input, those of MXFP4
    by output.

    Args:
        weights: Tensors of the checkpoint.
        sizes: Sizes of the experts.
        hidden: Features that they read and write.
        form: Form of the checkpoint's quantized projections; None if it has none.
        layer: What the names of the layer's tensors begin with.
    """
    block, count, inner = f"{layer}mlp.", sizes.count, sizes.intermediate_size

    def projection(name: str, outputs: int, inputs: int) -> _Read:
        name = f"{block}experts.{name}"
        bias = weights.take(f"{name}_bias", (count, outputs))
        if form is not None and form.read_experts is not None and not weights.has_floats(name):
            read = form.read_experts(weights, name, count, outputs, inputs)
        else:
            read = partial(_by_output, weights.take(name, (count, inputs, outputs)))
        return lambda: replace(read(), bias=bias.to_float32().ravel())

    router = weights.take(f"{block}router.weight", (count, hidden))
    router_bias = weights.take(f"{block}router.bias", (count,))
    gate_and_up = projection("gate_up_proj", 2 * inner, hidden)
    down = projection("down_proj", hidden, inner)

    def experts() -> dict[str, Any]:
        both, columns = gate_and_up(), np.arange(2 * inner * count)
        return {
            "router": Linear(router, bias=router_bias.to_float32()),
            "fc": both.rows(columns[::2]),
            "gate": both.rows(columns[1::2]),
            "proj": down(),
        }

    return experts


def _by_output(weight: Tensor) -> Linear:
    shape = (weight.shape[0] * weight.shape[2], weight.shape[1])
    return Linear(Tensor(weight.dtype, shape, weight.data.swapaxes(1, 2).reshape(shape)))
