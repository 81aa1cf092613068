"""Define what forms of quantized projections share: their interface, blocks with one scale, integers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from build.checkpoints.settings import Settings
from build.checkpoints.tensor_file import FLOATS, AnyArray, Tensor
from build.hugging_face.weights import Weights
from build.networks.linear import Linear

Read = Callable[[Weights, str, int, int], Callable[[], Linear]]
"""Takes weights and a projection: its name, such as ``model.layers.0.mlp.up_proj``, its outputs and inputs.

Checks its tensors, and returns the function that reads them. Both raise CheckpointError for a tensor that is
missing or does not fit.
"""


@dataclass(frozen=True)
class Form:
    """A way to store quantized projections.

    Attributes:
        name: ``quant_method``, or ``quant_algo`` of TensorRT-LLM.
        read: Reads a projection.
        bits: Bits of its integers, the most if there are several; None for FP8.
        group_size: Inputs that share a scale, the least if there are several; 1 for all of them.
        rounds_activations: Whether it is made for activations that are rounded to INT8 as they come.
        read_experts: Reads a projection of all experts, whose number comes before outputs and inputs; None
            where each expert has tensors of its own.
    """

    name: str
    read: Read
    bits: float | None
    group_size: int = 1
    rounds_activations: bool = False
    read_experts: Callable[[Weights, str, int, int, int], Callable[[], Linear]] | None = None


class Blocks(NamedTuple):
    """Size of the blocks that a matrix [out, in] is divided into; the last ones may be smaller.

    Attributes:
        rows: Outputs of a block; None for all.
        columns: Inputs of a block; None for all.
    """

    rows: int | None = None
    columns: int | None = None

    @property
    def group_size(self) -> int:
        """Return the inputs that share a scale; 1 for all."""
        return self.columns or 1

    def num_groups(self, inputs: int) -> int:
        """Return the blocks beside each other in a matrix of so many inputs."""
        return 1 if self.columns is None else math.ceil(inputs / self.columns)

    def take(
        self, weights: Weights, name: str, outputs: int, inputs: int, dtypes: tuple[str, ...] = FLOATS
    ) -> Tensor:
        """Return the tensor with one value for each block; axes of size 1 may be left out of it.

        Raises:
            CheckpointError: It is missing, or has another shape or type.
        """
        shape = (1 if self.rows is None else math.ceil(outputs / self.rows), self.num_groups(inputs))
        shapes: list[tuple[int, ...]] = [shape]
        if shape[1] == 1:
            shapes.append(shape[:1])
        if shape == (1, 1):
            shapes.append(())
        return weights.take(name, *shapes, dtypes=dtypes)

    def spread(self, values: AnyArray, outputs: int, inputs: int) -> AnyArray:
        """Repeat the values of blocks, so that each output has its own, and groups have equal sizes.

        Args:
            values: As ``take`` returns them.
            outputs: Outputs of the matrix.
            inputs: Inputs of the matrix.

        Returns:
            [outputs, groups].
        """
        values = values.reshape(-1, 1) if values.ndim < 2 else values
        values = np.repeat(values, min(self.rows or outputs, outputs), axis=0)[:outputs]
        if self.columns is None:
            return values
        columns = min(self.columns, inputs)
        group = math.gcd(columns, inputs)
        return np.repeat(values, columns // group, axis=1)[:, : inputs // group]


def read_groups(settings: Settings, key: str, default: int | None = None) -> Blocks:
    """Parse the inputs of a group; -1 stands for all.

    Raises:
        CheckpointError: It is no such number.
    """
    if settings.get(key, default) == -1:
        return Blocks(rows=1)
    return Blocks(rows=1, columns=settings.integer(key, default))


def read_blocks(settings: Settings, key: str) -> Blocks:
    """Parse the rows and columns of a block.

    Raises:
        CheckpointError: They are not two positive numbers.
    """
    value = settings.items(key, int)
    if len(value) != 2 or not all(0 < n < 1 << 20 for n in value):
        raise settings.fail(f"{key}={value!r:.80} must be the rows and the columns of a block")
    return Blocks(*value)


def unpack(words: AnyArray, bits: int) -> AnyArray:
    """Unpack the last axis, the lowest bits of a word first.

    Args:
        words: int32 [..., n].
        bits: 4 or 8.

    Returns:
        uint8 [..., n * 32 / bits].
    """
    values = np.ascontiguousarray(words, dtype="<i4").view(np.uint8)
    if bits == 8:
        return values
    halves: AnyArray = np.stack([values & 15, values >> 4], axis=-1)
    return halves.reshape(*values.shape[:-1], -1)


def signed(values: AnyArray, bits: int) -> AnyArray:
    """Subtract half of the range: uint8 from 0 on becomes int8 around 0."""
    return (values - np.uint8(1 << (bits - 1))).view(np.int8)


def unsigned(values: AnyArray, bits: int) -> AnyArray:
    """Add half of the range: int8 around 0 becomes uint8 from 0 on."""
    return np.ascontiguousarray(values).view(np.uint8) + np.uint8(1 << (bits - 1))
