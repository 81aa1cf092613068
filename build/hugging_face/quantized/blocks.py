"""The weights that share a scale: a matrix, a row, a group of a row's inputs, or a rectangle."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from build.checkpoints.tensor_file import AnyArray, Tensor
from build.hugging_face.settings import Settings
from build.hugging_face.weights import FLOATS, Weights


class Blocks(NamedTuple):
    """Size of the blocks that a matrix [out, in] is divided into; the last ones may be smaller.

    Attributes:
        rows: Outputs of a block; None for all.
        columns: Inputs of a block; None for all.
    """

    rows: int | None = None
    columns: int | None = None

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
        values = np.repeat(values, self.rows or outputs, axis=0)[:outputs]
        if self.columns is None:
            return values
        group = math.gcd(self.columns, inputs)
        return np.repeat(values, self.columns // group, axis=1)[:, : inputs // group]


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
    value = settings.get(key)
    if not isinstance(value, list) or len(value) != 2 or not all(type(n) is int and n > 0 for n in value):
        raise settings.fail(f"{key}={value!r:.80}", "two integers above 0: rows and columns of a block")
    return Blocks(*value)
