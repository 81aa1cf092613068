"""A projection's weight as it is stored, and what is done to its input before the product."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from build.tensor_file import Float32Array, Tensor


@dataclass(frozen=True)
class InputQuantization:
    """Rounding of a projection's input by a scale that calibration found.

    Attributes:
        dtype: ``I8``: to -128..127 steps of ``scale``. ``F8_E4M3``: to E4M3 after division by ``scale``.
        scale: Above 0.
    """

    dtype: str
    scale: float


@dataclass(frozen=True)
class Linear:
    """A projection y = Q(x * prequant) W^T + bias.

    Attributes:
        weight: [out, in]; BF16, F16, F32, I8 or F8_E4M3. INT4 is I8 in -8..7.
        scale: float32; W = weight * scale. [out, 1] for I8, [1, 1] for F8_E4M3, [out, in / group] for
            INT4; None for floats.
        prequant: float32 [in], factor of the input; None for 1.
        input_quantization: Q; None for the identity.
        bias: float32 [out]; None for 0.
    """

    weight: Tensor
    scale: Float32Array | None = None
    prequant: Float32Array | None = None
    input_quantization: InputQuantization | None = None
    bias: Float32Array | None = None

    @property
    def is_weight_only_int8(self) -> bool:
        """Whether this is INT8 per output channel and nothing is done to the input."""
        plain = self.prequant is None and self.input_quantization is None
        return plain and self.weight.dtype == "I8" and not self.is_grouped

    @property
    def is_grouped(self) -> bool:
        """Whether several inputs share a scale and others have another one: INT4."""
        return self.scale is not None and self.scale.shape[1] > 1

    def stored_values(self) -> Float32Array:
        """W as float32 [out, in]: what multiplies the input after ``prequant``."""
        weight = self.weight.to_float32()
        if self.scale is None:
            return weight
        if not self.is_grouped:
            return weight * self.scale
        groups = weight.reshape(*self.scale.shape, -1) * self.scale[:, :, None]
        return np.ascontiguousarray(groups.reshape(weight.shape))

    def to_float32(self) -> Float32Array:
        """The weight that multiplies x itself, float32 [out, in]: W * prequant."""
        values = self.stored_values()
        return values if self.prequant is None else values * self.prequant

    @property
    def bytes_per_step(self) -> int:
        """Bytes that a step reads: the CPU plugin keeps integers and expands the rest to float32."""
        if self.weight.dtype != "I8" or self.scale is None:
            return 4 * self.weight.data.size
        return self.weight.data.size // (2 if self.is_grouped else 1) + self.scale.nbytes
