"""The weight of a projection, and the scaling and rounding of its input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from build.checkpoints.tensor_file import AnyArray, Float32Array, Tensor

_INTEGERS = ("I8", "U8")


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
        scale: float32 [out or 1, groups]; W = (weight - zero_point) * scale, where inputs are divided into
            groups of equal size; None for floats.
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
        return self.is_integer and self.zero_point is None and self.weight.dtype == "I8"

    @property
    def is_weight_only_int8(self) -> bool:
        """Return whether this is symmetric INT8 per output channel with an unchanged input."""
        is_plain = self.is_symmetric_integer and self.input_order is None and not self.is_grouped
        return self.is_weight_only and is_plain and self.bits == 8

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
        return np.ascontiguousarray((grouped * self.scale[:, :, None]).reshape(values.shape))

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
            return 4 * self.weight.data.size
        zeros = 0 if self.zero_point is None else self.zero_point.size
        return (self.weight.data.size + zeros) * self.bits // 8 + self.scale.nbytes

    def split(self, sizes: Sequence[int]) -> list[Linear]:
        """Split the projection along its outputs."""
        borders = np.cumsum(sizes)[:-1]

        def parts(values: AnyArray | None) -> list[AnyArray | None]:
            if values is None or len(values) == 1:  # an E4M3 weight may have one scale for all outputs
                return [values] * len(sizes)
            return list(np.split(values, borders))

        columns = zip(
            np.split(self.weight.data, borders),
            parts(self.scale),
            parts(self.zero_point),
            parts(self.bias),
            strict=True,
        )
        return [
            replace(
                self,
                weight=Tensor(self.weight.dtype, weight.shape, weight),
                scale=scale,
                zero_point=zero_point,
                bias=bias,
            )
            for weight, scale, zero_point, bias in columns
        ]


def stack(parts: Sequence[Linear]) -> Linear | None:
    """Stack projections of the same input along their outputs.

    Returns:
        The projection; None if they are stored in different forms.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    forms = {
        (
            part.weight.dtype,
            part.bits,
            None if part.scale is None else part.scale.shape[1],
            part.zero_point is None,
            None if part.input_order is None else part.input_order.tobytes(),
            part.input_quantization,
        )
        for part in parts
    }
    if len(forms) > 1:
        return None

    def stacked(values: Sequence[AnyArray | None]) -> AnyArray | None:
        present = [value for value in values if value is not None]
        return np.concatenate(present) if present else None

    def scale(part: Linear) -> AnyArray | None:
        if part.scale is None:
            return None
        return np.broadcast_to(part.scale, (len(part.weight.data), part.scale.shape[1]))

    data = np.concatenate([part.weight.data for part in parts])
    return replace(
        first,
        weight=Tensor(first.weight.dtype, data.shape, data),
        scale=stacked([scale(part) for part in parts]),
        zero_point=stacked([part.zero_point for part in parts]),
        bias=stacked([part.bias for part in parts]),
    )
