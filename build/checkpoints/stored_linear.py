"""Tensor layout of a projection for each quantization of a TensorRT-LLM checkpoint.

Names and shapes are those that ModelOpt 0.47 writes. A projection of [out, in] has a ``weight`` and the
scales listed in ``FORMS``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from build.checkpoints.tensor_file import FLOATS, AnyArray, Tensor
from build.networks.linear import InputQuantization, Linear

_Shapes = tuple[tuple[int, ...], ...]
_ShapesOf = Callable[[int, int, int], _Shapes]  # out, in, group size


def _scalar(out: int, columns: int, group: int) -> _Shapes:
    return ((1,), ())


def _per_output(out: int, columns: int, group: int) -> _Shapes:
    return ((out,),)


def _per_input(out: int, columns: int, group: int) -> _Shapes:
    return ((columns,),)


def _per_group(out: int, columns: int, group: int) -> _Shapes:
    return ((out, columns // group),)


@dataclass(frozen=True)
class StoredForm:
    """Layout of the tensors of one projection.

    Attributes:
        weight_dtypes: Allowed types of the weight.
        factors: Name of each scale -> its allowed shapes; all scales are required.
        input_dtype: Type that the input is rounded to with ``activation_scaling_factor``; None: not rounded.
        is_packed: Whether two outputs share a byte, the even one in the low four bits.
    """

    weight_dtypes: tuple[str, ...]
    factors: Mapping[str, _ShapesOf]
    input_dtype: str | None = None
    is_packed: bool = False

    def weight_shape(self, out: int, columns: int) -> tuple[int, int]:
        """Return the shape of the stored weight."""
        return (out // 2 if self.is_packed else out, columns)


def _factors(**shapes: _ShapesOf) -> Mapping[str, _ShapesOf]:
    return MappingProxyType(shapes)


FORMS: Mapping[str | None, StoredForm] = MappingProxyType(
    {
        None: StoredForm(FLOATS, _factors()),
        "FP8": StoredForm(
            ("F8_E4M3",),
            _factors(weights_scaling_factor=_scalar, activation_scaling_factor=_scalar),
            input_dtype="F8_E4M3",
        ),
        "W8A16": StoredForm(("I8",), _factors(weights_scaling_factor=_per_output)),
        "W8A8_SQ_PER_CHANNEL": StoredForm(
            ("I8",),
            _factors(
                weights_scaling_factor=_per_output,
                activation_scaling_factor=_scalar,
                prequant_scaling_factor=_per_input,
            ),
            input_dtype="I8",
        ),
        "W4A16_AWQ": StoredForm(
            ("I8",),
            _factors(weights_scaling_factor=_per_group, prequant_scaling_factor=_per_input),
            is_packed=True,
        ),
        # weights_scaling_factor_2 lets a GPU fold the scales into FP8; it changes no value and is ignored.
        "W4A8_AWQ": StoredForm(
            ("I8",),
            _factors(
                weights_scaling_factor=_per_group,
                weights_scaling_factor_2=_scalar,
                activation_scaling_factor=_scalar,
                prequant_scaling_factor=_per_input,
            ),
            input_dtype="F8_E4M3",
            is_packed=True,
        ),
    }
)
"""By ``quantization.quant_algo``."""


def form_of(quant_algo: str | None, weight_dtype: str | None) -> StoredForm:
    """Return the layout of a projection; W8A16 weights may be floating point, to be rounded on load."""
    if quant_algo == "W8A16" and weight_dtype in FLOATS:
        return FORMS[None]
    return FORMS[quant_algo]


def unpack_int4(packed: AnyArray) -> AnyArray:
    """Unpack INT4 values, int8 [out / 2, in], to int8 [out, in] in -8..7."""
    low, high = packed.astype(np.int8) << 4 >> 4, packed.astype(np.int8) >> 4
    values: AnyArray = np.stack([low, high], axis=1).reshape(2 * packed.shape[0], packed.shape[1])
    return values


def read_linear(tensors: Mapping[str, Tensor], prefix: str, quant_algo: str | None) -> Linear:
    """Read one projection of a checkpoint, or of one rank of it.

    Args:
        tensors: Tensors by name; shapes and types must have been checked.
        prefix: Prefix of the tensor names, such as ``transformer.layers.0.mlp.fc``.
        quant_algo: Quantization of the checkpoint.
    """
    weight = tensors[f"{prefix}.weight"]
    form = form_of(quant_algo, weight.dtype)
    factors = {name: tensors[f"{prefix}.{name}"].to_float32() for name in form.factors}
    if form.is_packed:
        values = unpack_int4(weight.data)
        weight = Tensor("I8", values.shape, values)
    scale = factors.get("weights_scaling_factor")
    if scale is not None and scale.ndim < 2:
        scale = scale.reshape(-1, 1)
    rounding = None
    if form.input_dtype is not None:
        rounding = InputQuantization(form.input_dtype, float(factors["activation_scaling_factor"].item()))
    bias = tensors.get(f"{prefix}.bias")
    return Linear(
        weight,
        scale,
        factors.get("prequant_scaling_factor"),
        rounding,
        None if bias is None else bias.to_float32(),
        bits=4 if form.is_packed else 8,
    )
