"""Read the projections of a TensorRT-LLM checkpoint, with the scales that ModelOpt 0.47 writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from build.checkpoints.settings import Settings
from build.checkpoints.tensor_file import FLOATS, AnyArray, Tensor
from build.hugging_face.quantized.form import Form
from build.hugging_face.weights import Weights
from build.networks.linear import InputQuantization, Linear


@dataclass(frozen=True)
class _Algorithm:
    """What an algorithm stores of a projection.

    Attributes:
        dtype: Type of the weight.
        bits: Bits of an integer; None for FP8. Two outputs of four bits share a byte, the even one in the low
            half.
        input_dtype: Type that the input is rounded to; None: it is not rounded.
        scales_input: Whether the input is scaled first.
    """

    dtype: str
    bits: int | None
    input_dtype: str | None = None
    scales_input: bool = False


_ALGORITHMS: Mapping[str, _Algorithm] = {
    "FP8": _Algorithm("F8_E4M3", None, "F8_E4M3"),
    "W8A16": _Algorithm("I8", 8),
    "W8A8_SQ_PER_CHANNEL": _Algorithm("I8", 8, "I8", scales_input=True),
    "W4A16_AWQ": _Algorithm("I8", 4, scales_input=True),
    "W4A8_AWQ": _Algorithm("I8", 4, "F8_E4M3", scales_input=True),
}
"""By ``quantization.quant_algo``."""


def _read(
    algo: str, group_size: int, weights: Weights, name: str, outputs: int, inputs: int
) -> Callable[[], Linear]:
    """See ``form.Read``. Of W8A16, weights may be floating point, to be rounded on load."""
    algorithm, rows = _ALGORITHMS[algo], outputs
    scale_shapes: tuple[tuple[int, ...], ...] = ((outputs,),) if algorithm.bits else ((1,), ())
    if algorithm.bits == 4:
        if inputs % group_size:
            raise weights.fail(f"{name} has {inputs} inputs, not groups of group_size={group_size}")
        rows, scale_shapes = outputs // 2, ((outputs, inputs // group_size),)
    tensors = {
        "weight": weights.take(f"{name}.weight", (rows, inputs), dtypes=(algorithm.dtype,)),
        "weights_scaling_factor": weights.take(f"{name}.weights_scaling_factor", *scale_shapes),
    }
    if algorithm.input_dtype is not None:
        factor = "activation_scaling_factor"
        tensors[factor] = weights.take(f"{name}.{factor}", (1,), ())
    if algorithm.scales_input:
        factor = "prequant_scaling_factor"
        tensors[factor] = weights.take(f"{name}.{factor}", (inputs,))
    return lambda: linear_of(tensors, algo)


def linear_of(tensors: Mapping[str, Tensor], quant_algo: str | None) -> Linear:
    """Decode a projection without its bias, of a checkpoint or of one rank of it.

    Args:
        tensors: Its tensors, whose shapes and types must have been checked, by the end of their names.
        quant_algo: Quantization of the checkpoint.
    """
    weight = tensors["weight"]
    if quant_algo is None or weight.dtype in FLOATS:
        return Linear(weight)
    algorithm, prequant = _ALGORITHMS[quant_algo], tensors.get("prequant_scaling_factor")
    if algorithm.bits == 4:
        values = unpack_int4(weight.data)
        weight = Tensor("I8", values.shape, values)
    scale = tensors["weights_scaling_factor"].to_float32()
    rounding = None
    if algorithm.input_dtype is not None:
        step = float(tensors["activation_scaling_factor"].to_float32().item())
        rounding = InputQuantization(algorithm.input_dtype, step)
    return Linear(
        weight,
        scale.reshape(-1, 1) if scale.ndim < 2 else scale,
        prequant.to_float32() if algorithm.scales_input and prequant is not None else None,
        rounding,
        bits=algorithm.bits or 8,
    )


def unpack_int4(packed: AnyArray) -> AnyArray:
    """Unpack INT4 values, int8 [out / 2, in], to int8 [out, in] in -8..7."""
    low, high = packed.astype(np.int8) << 4 >> 4, packed.astype(np.int8) >> 4
    values: AnyArray = np.stack([low, high], axis=1).reshape(2 * packed.shape[0], packed.shape[1])
    return values


def read_tensorrt_llm(settings: Settings) -> Form:
    """Parse ``quantization`` of a TensorRT-LLM checkpoint.

    Raises:
        CheckpointError: The algorithm is not known, or has groups of an unknown size.
    """
    algo = settings.text("quant_algo")
    if algo is None or algo not in _ALGORITHMS:
        raise settings.fail(
            f"quant_algo={algo!r:.80}; supported: {', '.join(_ALGORITHMS)}",
            "export with one of these, or without quantization and set quantization: int8 in the recipe",
        )
    bits = _ALGORITHMS[algo].bits
    group_size = settings.integer("group_size") if bits == 4 else 1
    return Form(algo, partial(_read, algo, group_size), bits, group_size)
