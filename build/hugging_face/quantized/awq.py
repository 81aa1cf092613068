"""Read AWQ: unsigned 4 bits with a zero point for each group of inputs, eight outputs in a word.

Source: AutoAWQ 0.2.9, ``awq/modules/linear/gemm.py`` (``WQLinear_GEMM.from_linear``) and
``awq/utils/packing_utils.py`` (``dequantize_gemm``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from build.checkpoints.tensor_file import AnyArray, Tensor
from build.hugging_face.quantized.blocks import Blocks, read_groups
from build.hugging_face.quantized.integers import unpack
from build.hugging_face.settings import Settings
from build.hugging_face.weights import Weights
from build.networks.linear import Linear

# Output j of eight is in these bits of its word, counted in fours: AWQ_REVERSE_ORDER in packing_utils.py.
_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)


@dataclass(frozen=True)
class Awq:
    """AWQ in the layout of its GEMM kernel.

    Attributes:
        groups: Weights that share scale and zero point.
    """

    groups: Blocks
    name = "awq"
    bits = 4
    rounds_activations = False

    @property
    def group_size(self) -> int:
        """Return the inputs that share a scale; 1 for all."""
        return self.groups.columns or 1

    def read(self, weights: Weights, name: str, outputs: int, inputs: int) -> Callable[[], Linear]:
        """See ``Form``. W[j, i] = (qweight[i, j] - qzeros[group of i, j]) * scales[group of i, j]."""
        groups = self.groups.num_groups(inputs)
        if inputs % (self.groups.columns or 1) or outputs % 8:
            raise weights.fail(f"{name} is [{outputs}, {inputs}]", "whole groups of inputs, whole words")
        words = weights.take(f"{name}.qweight", (inputs, outputs // 8), dtypes=("I32",))
        zeros = weights.take(f"{name}.qzeros", (groups, outputs // 8), dtypes=("I32",))
        scales = weights.take(f"{name}.scales", (groups, outputs))

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


def read_awq(settings: Settings) -> Awq:
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
    return Awq(read_groups(settings, "group_size", 128))
