"""Read MXFP4, the experts of gpt-oss: numbers of four bits with a power of two for each group of 32 inputs.

A number is E2M1: 0, 0.5, 1, 1.5, 2, 3, 4 or 6 with a sign. Twice that is an integer, so nothing is rounded.
Source: transformers 5.14, ``integrations/mxfp4.py`` (``convert_moe_packed_tensors``).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from build.checkpoints.settings import Settings
from build.checkpoints.tensor_file import AnyArray, Tensor
from build.hugging_face.quantized.form import Form
from build.hugging_face.weights import Weights
from build.networks.linear import Linear

_GROUP = 32
_BITS = 5  # of twice a number, with its sign
_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
_PAIRS = _DOUBLED[np.stack([np.arange(256) & 15, np.arange(256) >> 4], axis=1)]  # of each byte
_BIAS = 127
_LARGEST_EXPONENT = 252  # with a larger one 6 is beyond float32; 255 is no number
_ROWS = 4096


def _read(weights: Weights, name: str, outputs: int, inputs: int) -> Callable[[], Linear]:
    """See ``form.Read``. All but experts are in floating point."""
    weight = weights.take(f"{name}.weight", (outputs, inputs))
    return lambda: Linear(weight)


def _read_experts(weights: Weights, name: str, count: int, outputs: int, inputs: int) -> Callable[[], Linear]:
    """See ``Form.read_experts``."""
    if inputs % _GROUP:
        raise weights.fail(f"{name} has {inputs} inputs, not groups of {_GROUP}")
    shape = (count, outputs, inputs // _GROUP)
    blocks = weights.take(f"{name}_blocks", (*shape, _GROUP // 2), dtypes=("U8",))
    exponents = weights.take(f"{name}_scales", shape, dtypes=("U8",))

    def linear() -> Linear:
        if (largest := int(exponents.data.max())) > _LARGEST_EXPONENT:
            raise weights.fail(f"{name}_scales holds {largest}, above {_LARGEST_EXPONENT}")
        return linear_of(*(each.data.reshape(count * outputs, -1) for each in (blocks, exponents)))

    return linear


def linear_of(blocks: AnyArray, exponents: AnyArray) -> Linear:
    """Decode a matrix.

    Args:
        blocks: uint8 [out, in / 2], two numbers in a byte, the first one in the low half.
        exponents: uint8 [out, groups]; the powers of two are 2^(exponent - 127).
    """
    integers = np.empty((len(blocks), 2 * blocks.shape[1]), np.int8)
    for begin in range(0, len(blocks), _ROWS):  # indices have eight bytes on the way
        rows = slice(begin, begin + _ROWS)
        integers[rows] = _PAIRS[blocks[rows]].reshape(-1, integers.shape[1])
    scale = np.ldexp(np.float32(1), exponents.astype(np.int32) - _BIAS - 1)
    return Linear(Tensor("I8", integers.shape, integers), scale, bits=_BITS)


def read_mxfp4(settings: Settings) -> Form:
    """Return the form; its settings only list what is in floating point."""
    return Form("mxfp4", _read, _BITS, _GROUP, read_experts=_read_experts)
