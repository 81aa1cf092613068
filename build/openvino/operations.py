"""Write the parts of a decoder in patterns that the CPU plugin fuses.

A hidden state has the shape [T, 1, hidden] for the T tokens of all sequences. Operations are opset15's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
from openvino import op as ov_op
from openvino import opset15 as ops

from build.checkpoints.tensor_file import AnyArray, Float32Array, Tensor
from build.networks.linear import InputQuantization, Linear
from build.networks.network import Rotary
from build.networks.rotary import rotary_frequencies

Product = Callable[[Any, Linear], Any]
"""Multiplies the last axis of a node with the weight of a projection, without its bias."""

LARGE_TABLE = 1 << 26
"""Bytes; a copy of a smaller table costs less than the operations that avoid it."""

_ELEMENT_TYPES = {
    "BF16": ov.Type.bf16,
    "F16": ov.Type.f16,
    "F32": ov.Type.f32,
    "I8": ov.Type.i8,
    "U8": ov.Type.u8,
    "F8_E4M3": ov.Type.f8e4m3,
}


def parameter(name: str, shape: list[int], dtype: Any) -> Any:
    """Return an input of the network whose tensor has the same name."""
    made = ops.parameter(ov.PartialShape(shape), dtype, name)
    made.output(0).get_tensor().set_names({name})
    return made


def stored(tensor: Tensor) -> Any:
    """Return a constant with the bits of ``tensor``."""
    data = np.ascontiguousarray(tensor.data)
    raw = ov.Tensor(data, ov.Shape(list(tensor.shape)), _ELEMENT_TYPES[tensor.dtype])
    return ov_op.Constant(raw, False)  # False: copy, so that the array need not outlive the graph


def rows(table: Tensor, indices: Any) -> Any:
    """Return rows of a table of floats as f32.

    The plugin makes a copy in float32 of any constant of floats. So a large table of 16 bits is stored as the
    high and the low byte of each number, which name it among all numbers of its type.
    """
    if table.dtype not in ("F16", "BF16") or table.data.nbytes < LARGE_TABLE:
        picked = ops.gather(stored(table), indices, integers(0))
        return picked if table.dtype == "F32" else ops.convert(picked, "f32")

    def part(data: AnyArray) -> Any:
        constant = stored(Tensor("U8", data.shape, data))
        return ops.convert(ops.gather(constant, indices, integers(0)), "f32")

    data = table.data.view(np.uint16)
    high, low = part((data >> 8).astype(np.uint8)), part(data.astype(np.uint8))
    number = ops.convert(ops.add(ops.multiply(high, floats(256.0)), low), "i32")
    all_numbers = np.arange(1 << 16, dtype=np.uint16).view(table.data.dtype)
    values = Tensor(table.dtype, all_numbers.shape, all_numbers).to_float32()
    return ops.gather(floats(values), number, integers(0))


def floats(values: Any) -> Any:
    """Return a float32 constant."""
    return ops.constant(np.asarray(values, dtype=np.float32))


def integers(values: Any) -> Any:
    """Return an int64 constant."""
    return ops.constant(np.asarray(values, dtype=np.int64))


def openvino_product(x: Any, weights: Linear) -> Any:
    """Multiply as OpenVINO does; a ``Product``."""
    return ops.matmul(x, _weight(weights), False, True)


def linear(x: Any, weights: Linear, product: Product) -> Any:
    """Apply a projection to the last axis of x.

    Args:
        x: Its input.
        weights: The projection.
        product: Multiplies with its weight.
    """
    if weights.prequant is not None:
        x = ops.multiply(x, floats(weights.prequant.reshape(1, 1, -1)))
    if weights.input_quantization is not None:
        x = _rounded(x, weights.input_quantization)
    if weights.input_order is not None:
        x = ops.gather(x, integers(weights.input_order), integers(-1))
    y = product(x, weights)
    return y if weights.bias is None else ops.add(y, floats(weights.bias.reshape(1, 1, -1)))


def rms_norm(x: Any, gain: Float32Array, epsilon: float) -> Any:
    """Normalize the last axis of x by its root mean square, times a gain of its size."""
    mean_square = ops.reduce_mean(ops.power(x, floats(2.0)), integers([-1]), keep_dims=True)
    inverse = ops.divide(floats(1.0), ops.sqrt(ops.add(mean_square, floats(epsilon))))
    return ops.multiply(ops.multiply(x, inverse), floats(gain.reshape(1, 1, -1)))


def scaled(x: Any, factor: float) -> Any:
    """Multiply x by a factor, unless that is 1."""
    return x if factor == 1 else ops.multiply(x, floats(factor))


def selected(logits: Any, rows: npt.NDArray[np.int32]) -> Any:
    """Return the logits [n, len(rows)] of these rows; minus infinity for a row of -1."""
    never = np.where(rows < 0, -np.inf, 0).astype(np.float32)
    return ops.add(ops.gather(logits, integers(np.maximum(rows, 0)), integers(1)), floats(never[np.newaxis]))


def split_heads(x: Any, num_heads: int, head_size: int) -> Any:
    """Reshape [T, 1, heads * size] to [T, 1, heads, size]."""
    return ops.reshape(x, integers([0, 0, num_heads, head_size]), True)


def merge_heads(x: Any, width: int) -> Any:
    """Reshape [T, heads, 1, size] to [T, heads * size], the input of paged attention."""
    return ops.reshape(ops.transpose(x, integers([0, 2, 1, 3])), integers([-1, width]), False)


def rotary_tables(positions: Any, rotary: Rotary) -> tuple[Any, Any]:
    """Return cosine and sine, each [B, 1, S, size], of positions f32 [B, 1, S]."""
    frequencies = floats(rotary_frequencies(rotary).reshape(1, -1, 1))
    angles = ops.matmul(frequencies, positions, False, False)
    angles = ops.transpose(angles, integers([0, 2, 1]))  # [B, S, size / 2]
    angles = ops.concat([angles, angles], -1)
    magnitude = 1.0 if rotary.scaling is None else rotary.scaling.magnitude
    cos, sin = (scaled(turn(angles), magnitude) for turn in (ops.cos, ops.sin))
    return ops.unsqueeze(cos, integers(1)), ops.unsqueeze(sin, integers(1))


def rotate(x: Any, cos: Any, sin: Any, rotary_size: int, head_size: int) -> Any:
    """Rotate the first coordinates of [T, heads, 1, size]; the plugin fuses Slice here, but not Split."""
    turning = x if rotary_size == head_size else _columns(x, 0, rotary_size)
    half = rotary_size // 2
    low, high = _columns(turning, 0, half), _columns(turning, half, rotary_size)
    turned = ops.concat([ops.multiply(high, floats(-1.0)), low], -1)
    rotated = ops.add(ops.multiply(turning, cos), ops.multiply(turned, sin))
    if rotary_size == head_size:
        return rotated
    return ops.concat([rotated, _columns(x, rotary_size, head_size)], -1)


def _columns(x: Any, begin: int, end: int) -> Any:
    return ops.slice(x, integers([begin]), integers([end]), integers([1]), integers([3]))


def _integers_of_4_bits(values: AnyArray) -> Any:
    """Return a constant in OpenVINO's packing: two values per byte, the even one in the low half."""
    flat = values.reshape(-1).astype(np.uint8)
    flat = np.append(flat, np.uint8(0)) if flat.size % 2 else flat
    packed = np.ascontiguousarray((flat[0::2] & 15) | (flat[1::2] << 4))
    element = ov.Type.u4 if values.dtype == np.uint8 else ov.Type.i4
    raw = ov.Tensor(packed, ov.Shape(list(values.shape)), element)
    return ops.convert(ov_op.Constant(raw, False), "f32")


def _weight(weights: Linear) -> Any:
    """Return the weight [out, in] in a pattern that the plugin keeps compressed."""
    weight, scale, zero_point = weights.weight, weights.scale, weights.zero_point
    if scale is None:
        # As float32 in the file: from any other type the plugin makes a copy that it never frees.
        return floats(weight.to_float32())
    if weights.bits == 8 and zero_point is None and not weights.is_grouped:
        return ops.multiply(ops.convert(stored(weight), "f32"), floats(scale))

    num_groups = scale.shape[1]

    def grouped(values: AnyArray) -> Any:
        values = values.reshape(len(values), num_groups, -1)
        if weights.bits == 4:
            return _integers_of_4_bits(values)
        return ops.convert(stored(Tensor(weight.dtype, values.shape, values)), "f32")

    result = grouped(weight.data)
    if zero_point is not None:
        result = ops.subtract(result, grouped(zero_point))
    if weights.offset is not None:  # as a zero point, because the plugin would expand a sum to floats
        smallest = np.maximum(np.abs(weights.offset) * np.float32(2**-24), np.float32(1e-30))
        scale = np.where(np.abs(scale) > smallest, scale, smallest)
        result = ops.subtract(result, floats((-weights.offset / scale)[:, :, None]))
    result = ops.multiply(result, floats(scale[:, :, None]))
    return ops.reshape(result, integers(weight.shape), False)


def _rounded(x: Any, quantization: InputQuantization) -> Any:
    """Round x as a GPU does, except that FakeConvert rounds to float16 before E4M3."""
    scale = quantization.scale
    if quantization.dtype == "I8":
        low, high = floats(-128 * scale), floats(127 * scale)
        return ops.fake_quantize(x, low, high, low, high, 256)
    return ops.fake_convert(x, floats([1 / scale]), destination_type="f8e4m3")
