"""The weight of a projection, and the scaling and rounding of its input."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from build.checkpoints.tensor_file import AnyArray, Float32Array, Tensor

_INTEGERS = ("I8", "U8")
BY_OUTPUT = ("scale", "zero_point", "bias", "offset", "units")
"""Attributes of a ``Linear`` that have a row for each output, or one for all."""


@dataclass(frozen=True)
class InputQuantization:
    """Rounding of a projection's input, with a scale from calibration.

    Attributes:
        dtype: ``I8``: round to -128..127 steps of ``scale``. ``F8_E4M3``: divide by ``scale`` and round to
            E4M3.
        scale: A positive number.
    """

    dtype: str
    scale: float


@dataclass(frozen=True)
class Linear:
    """A projection y = Q(x * prequant) W^T + bias.

    Attributes:
        weight: [out, in]; BF16, F16, F32, I8, U8 or F8_E4M3.
        scale: float32 [out or 1, groups]; W = (weight - zero_point) * scale + offset, where inputs are
            divided into groups of equal size; None for floats.
        offset: float32 [out, groups]; None for 0.
        units: float32 [out, kinds, n]: scales, and offsets if there are any, are -128 to 127 times these
            numbers. Groups beside each other share a unit, so n divides their number; None if that is not
            known.
        zero_point: [out, groups], of the weight's type; None for 0.
        bits: 4 if the integers of weight and zero point fit into 4 bits and are stored so in an engine.
        input_order: The column i of weight belongs to the input ``input_order[i]``, int32 [in]; None for i.
        prequant: float32 [in], multiplied with the input; None for 1.
        input_quantization: Q; None for the identity.
        bias: float32 [out]; None for 0.
    """

    weight: Tensor
    scale: Float32Array | None = None
    prequant: Float32Array | None = None
    input_quantization: InputQuantization | None = None
    bias: Float32Array | None = None
    zero_point: AnyArray | None = None
    bits: int = 8
    input_order: npt.NDArray[np.int32] | None = None
    offset: Float32Array | None = None
    units: Float32Array | None = None

    @property
    def is_integer(self) -> bool:
        """Return whether the weight consists of integers and scales."""
        return self.weight.dtype in _INTEGERS and self.scale is not None

    @property
    def is_weight_only(self) -> bool:
        """Return whether the weight consists of integers, and the input is unchanged."""
        return self.is_integer and self.prequant is None and self.input_quantization is None

    @property
    def is_symmetric_integer(self) -> bool:
        """Return whether the weight consists of signed integers around 0, and scales."""
        has_shift = self.zero_point is not None or self.offset is not None
        return self.is_integer and not has_shift and self.weight.dtype == "I8"

    @property
    def is_grouped(self) -> bool:
        """Return whether each group of inputs has its own scale."""
        return self.scale is not None and self.scale.shape[1] > 1

    def stored_values(self) -> Float32Array:
        """Return W, float32 [out, in], without ``prequant``."""
        values = self.weight.to_float32()
        if self.scale is None:
            return values
        grouped = values.reshape(len(values), self.scale.shape[1], -1)
        if self.zero_point is not None:
            grouped = grouped - self.zero_point.astype(np.float32)[:, :, None]
        grouped = grouped * self.scale[:, :, None]
        if self.offset is not None:
            grouped += self.offset[:, :, None]
        return np.ascontiguousarray(grouped.reshape(values.shape))

    def to_float32(self) -> Float32Array:
        """Return W * prequant, float32 [out, in], which applies to the original input."""
        values = self.stored_values()
        if self.input_order is not None:
            ordered = np.empty_like(values)
            ordered[:, self.input_order] = values
            values = ordered
        return values if self.prequant is None else values * self.prequant

    @property
    def bytes_per_step(self) -> int:
        """Return the bytes that a step reads; the CPU plugin expands all types but integers to float32."""
        if not self.is_integer or self.scale is None:
            return 4 * self.weight.size
        zeros = 0 if self.zero_point is None else self.zero_point.size
        units, levels = self.short_scales()
        scales = units.nbytes + (0 if levels is None else levels.nbytes)
        return (self.weight.size + zeros) * self.bits // 8 + scales

    def short_scales(self) -> tuple[AnyArray, npt.NDArray[np.int8] | None]:
        """Return scales, and offsets if there are any, in the fewest bytes that keep their values.

        Returns:
            Units, float16 or float32 [out, kinds, n], and levels, int8 [out, kinds, groups]: a value is the
            level of its group times the unit that it shares. Without levels there is a unit for each group.
        """
        assert self.scale is not None
        kinds = [self.scale] if self.offset is None else [self.scale, self.offset]
        values, levels = np.stack(kinds, axis=1), None
        if self.units is not None:
            shared = np.repeat(self.units, values.shape[2] // self.units.shape[2], axis=2)
            levels = np.divide(values, shared, out=np.zeros_like(values), where=shared != 0).astype(np.int8)
            values = self.units
        with np.errstate(over="ignore"):
            halves = values.astype(np.float16)
        return (halves if np.array_equal(halves, values) else values), levels

    def rows(self, indices: npt.NDArray[np.integer[Any]] | slice) -> Linear:
        """Return the projection to some of the outputs."""

        def some(values: AnyArray | None) -> AnyArray | None:
            # An E4M3 weight may have one scale for all outputs.
            return values if values is None or len(values) == 1 else values[indices]

        weight = self.weight.data[indices]
        others: dict[str, Any] = {name: some(getattr(self, name)) for name in BY_OUTPUT}
        return replace(self, weight=Tensor(self.weight.dtype, weight.shape, weight), **others)

    def split(self, sizes: Sequence[int]) -> list[Linear]:
        """Split the projection along its outputs."""
        ends = itertools.accumulate(sizes)
        return [self.rows(slice(end - size, end)) for size, end in zip(sizes, ends, strict=True)]

    def _form(self) -> tuple[object, ...]:
        """Return what projections have in common that can be stacked."""
        return (
            self.weight.dtype,
            self.bits,
            None if self.scale is None else self.scale.shape[1],
            self.zero_point is None,
            self.offset is None,
            None if self.units is None else self.units.shape[2],
            None if self.input_order is None else self.input_order.tobytes(),
            self.input_quantization,
        )


def stack(parts: Iterable[Linear]) -> tuple[Linear, ...]:
    """Stack projections of one input along their outputs: neighbours that are stored in the same form."""
    forms = itertools.groupby(parts, Linear._form)
    return tuple(_stack(list(equal)) for _, equal in forms)


def _stack(parts: Sequence[Linear]) -> Linear:
    first = parts[0]
    if len(parts) == 1:
        return first

    def stacked(name: str) -> AnyArray | None:
        values = [getattr(part, name) for part in parts]
        present = [
            np.broadcast_to(value, (len(part.weight.data), *value.shape[1:]))
            for part, value in zip(parts, values, strict=True)
            if value is not None
        ]
        return np.concatenate(present) if present else None

    data = np.concatenate([part.weight.data for part in parts])
    others: dict[str, Any] = {name: stacked(name) for name in BY_OUTPUT}
    return replace(first, weight=Tensor(first.weight.dtype, data.shape, data), **others)
