"""Read GPTQ and AWQ: unsigned integers in 32-bit words, with a zero point for each group of inputs.

GPTQ has 4 or 8 bits and several inputs in a word. Source: auto_gptq 0.7.1,
``nn_modules/qlinear/qlinear_cuda.py`` (``pack``), and GPTQModel 7.7.0, ``utils/model.py``
(``convert_gptq_v1_to_v2_format_module``).

AWQ has 4 bits and eight outputs in a word. Source: AutoAWQ 0.2.9, ``awq/modules/linear/gemm.py``
(``WQLinear_GEMM.from_linear``) and ``awq/utils/packing_utils.py`` (``dequantize_gemm``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from build.checkpoints.settings import Settings
from build.checkpoints.tensor_file import AnyArray, Tensor
from build.hugging_face.quantized.form import Blocks, Form, read_groups, signed, unpack
from build.hugging_face.weights import Weights
from build.networks.linear import Linear

_ONES = {4: 0x11111111, 8: 0x01010101}  # 1 in each integer of a word
# Output j of eight is in these bits of its word, counted in fours: AWQ_REVERSE_ORDER in packing_utils.py.
_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)


@dataclass(frozen=True)
class Gptq:
    """GPTQ in the layout of AutoGPTQ.

    Attributes:
        bits: 4 or 8.
        groups: Weights that share scale and zero point.
        is_symmetric: Whether all zero points are half of the range.
        has_order: Whether the inputs of a group may lie anywhere (``desc_act``).
        zeros_less_one: Whether zero points are stored less 1 (``gptq``), or as they are (``gptq_v2``).
        borrows: Whether a zero point of 0 borrowed from the next one when 1 was subtracted, as GPTQModel does
            it. AutoGPTQ and its kernels disagree about such zero points.
    """

    bits: int
    groups: Blocks
    is_symmetric: bool
    has_order: bool
    zeros_less_one: bool
    borrows: bool

    def read(self, weights: Weights, name: str, outputs: int, inputs: int) -> Callable[[], Linear]:
        """See ``form.Read``. W[j, i] = (qweight[i, j] - qzeros[group of i, j]) * scales[group of i, j]."""
        groups = self.groups.num_groups(inputs)
        per_word = 32 // self.bits
        if inputs % self.groups.group_size or inputs % per_word or outputs % per_word:
            raise weights.fail(f"{name} is [{outputs}, {inputs}], not whole groups of inputs and whole words")
        words = weights.take(f"{name}.qweight", (inputs // per_word, outputs), dtypes=("I32",))
        zeros = weights.take(f"{name}.qzeros", (groups, outputs // per_word), dtypes=("I32",))
        scales = weights.take(f"{name}.scales", (groups, outputs))
        places = None
        if f"{name}.g_idx" in weights:
            places = weights.take(f"{name}.g_idx", (inputs,), dtypes=("I32",))

        def linear() -> Linear:
            values = unpack(words.data.T, self.bits)
            zero_point: AnyArray | None = self._zero_points(weights, name, zeros.data)
            if self.is_symmetric:
                values, zero_point = signed(values, self.bits), None
            order = None if places is None else self._order(weights, name, places.data, inputs // groups)
            if order is not None:
                values = np.ascontiguousarray(values[:, order])
            return Linear(
                Tensor("I8" if self.is_symmetric else "U8", values.shape, values),
                np.ascontiguousarray(scales.to_float32().T),
                zero_point=zero_point,
                bits=self.bits,
                input_order=order,
            )

        return linear

    def _zero_points(self, weights: Weights, name: str, words: AnyArray) -> AnyArray:
        """Return the zero points, uint8 [out, groups]."""
        if self.zeros_less_one:
            if not self.borrows and (unpack(words, self.bits) == (1 << self.bits) - 1).any():
                raise weights.fail(
                    f"{name}.qzeros holds {(1 << self.bits) - 1}: checkpoint_format gptq stores zero points "
                    "less 1, and loaders disagree about 0 less 1"
                )
            words = (words.view(np.uint32) + np.uint32(_ONES[self.bits])).view(np.int32)
        zero_points = np.ascontiguousarray(unpack(words, self.bits).T)
        half = 1 << (self.bits - 1)
        if self.is_symmetric and (zero_points != half).any():
            other = int(zero_points[zero_points != half][0])
            raise weights.fail(
                f"{name}.qzeros means the zero point {other}, not {half}, although sym is true"
            )
        return zero_points

    def _order(
        self, weights: Weights, name: str, groups: npt.NDArray[np.int32], group_size: int
    ) -> npt.NDArray[np.int32] | None:
        """Return the inputs group by group; None if they lie so already."""
        expected = np.arange(len(groups)) // group_size
        if np.array_equal(groups, expected):
            return None
        order = np.argsort(groups, kind="stable").astype(np.int32)
        if not np.array_equal(groups[order], expected):
            raise weights.fail(f"{name}.g_idx has groups of different sizes, not of {group_size} inputs")
        if not self.has_order:
            raise weights.fail(f"{name}.g_idx orders the inputs, although desc_act is false")
        return order


def read_gptq(settings: Settings) -> Form:
    """Parse ``quantization_config``.

    Raises:
        CheckpointError: A value has no meaning that is implemented.
    """
    settings.refuse_unless("bits", 4, 8)
    settings.refuse_unless("pack_dtype", "int32")
    settings.refuse_unless("is_marlin_format", False)
    settings.refuse_unless("adapter")
    settings.refuse_unless("rotation")
    for key in ("checkpoint_format", "format"):
        settings.refuse_unless(key, "gptq", "gptq_v2")
    dynamic = settings.part("dynamic")
    if dynamic is not None and any(not key.startswith("-:") for key in dynamic.names):
        raise settings.fail(f"dynamic={settings.get('dynamic')!r:.200} may only leave modules out (-:)")
    meta = settings.part("meta")
    gptq = Gptq(
        bits=settings.integer("bits"),
        groups=read_groups(settings, "group_size", 128),
        is_symmetric=settings.flag("sym", default=True),
        has_order=settings.flag("desc_act"),
        zeros_less_one=settings.get("checkpoint_format", settings.get("format", "gptq")) == "gptq",
        borrows=meta is not None and "gptqmodel" in str(meta.get("quantizer")),
    )
    return Form("gptq", gptq.read, gptq.bits, gptq.groups.group_size)


def _read_awq(groups: Blocks, weights: Weights, name: str, outputs: int, inputs: int) -> Callable[[], Linear]:
    """See ``form.Read``. W[j, i] = (qweight[i, j] - qzeros[group of i, j]) * scales[group of i, j]."""
    num_groups = groups.num_groups(inputs)
    if inputs % groups.group_size or outputs % 8:
        raise weights.fail(f"{name} is [{outputs}, {inputs}], not whole groups of inputs and whole words")
    words = weights.take(f"{name}.qweight", (inputs, outputs // 8), dtypes=("I32",))
    zeros = weights.take(f"{name}.qzeros", (num_groups, outputs // 8), dtypes=("I32",))
    scales = weights.take(f"{name}.scales", (num_groups, outputs))

    def linear() -> Linear:
        values = _unpacked(words.data)
        return Linear(
            Tensor("U8", values.shape, values),
            np.ascontiguousarray(scales.to_float32().T),
            zero_point=_unpacked(zeros.data),
            bits=4,
        )

    return linear


def _unpacked(words: AnyArray) -> AnyArray:
    """Unpack int32 [n, out / 8] to uint8 [out, n]."""
    values = unpack(words, 4).reshape(len(words), -1, 8)[:, :, _PLACES]
    return np.ascontiguousarray(values.reshape(len(words), -1).T)


def read_awq(settings: Settings) -> Form:
    """Parse ``quantization_config``.

    Raises:
        CheckpointError: A value has no meaning that is implemented.
    """
    settings.refuse_unless("bits", 4)
    settings.refuse_unless("zero_point", True)
    settings.refuse_unless("desc_act", False)
    settings.refuse_unless("pack_dtype", "int32")
    settings.refuse_unless("backend", "auto", "autoawq")
    settings.refuse_unless("dynamic", {})
    for key in ("version", "format", "checkpoint_format"):
        settings.refuse_unless(key, "gemm", "GEMM")
    groups = read_groups(settings, "group_size", 128)
    return Form("awq", partial(_read_awq, groups), 4, groups.group_size)
