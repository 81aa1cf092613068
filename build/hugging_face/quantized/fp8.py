"""Read FP8 (E4M3) with one scale for each block of a matrix, or one for the matrix.

The values are exact: E4M3 times scale. A CPU has no kernel for them, so the runtime computes in float32.
Source: transformers 5.14, ``integrations/finegrained_fp8.py`` (``FP8Linear``, ``Fp8Dequantize``), and vLLM,
``model_executor/layers/quantization/fp8.py`` at 0071b24b, for ``weight_scale`` and ``input_scale``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from build.checkpoints.settings import Settings
from build.hugging_face.quantized.form import Blocks, Form, read_blocks
from build.hugging_face.weights import Weights
from build.networks.linear import InputQuantization, Linear


@dataclass(frozen=True)
class Fp8:
    """FP8.

    Attributes:
        blocks: Weights that share a scale in ``weight_scale_inv``. A ``weight_scale`` is one for the matrix.
        has_input_scale: Whether inputs are rounded to E4M3 with a scale of the checkpoint. Otherwise a GPU
            rounds them with a scale that it finds anew; here they stay float32.
    """

    blocks: Blocks
    has_input_scale: bool

    def read(self, weights: Weights, name: str, outputs: int, inputs: int) -> Callable[[], Linear]:
        """See ``form.Read``. W = weight * scale: ``weight_scale_inv`` is the factor, too."""
        weight = weights.take(f"{name}.weight", (outputs, inputs), dtypes=("F8_E4M3",))
        blocks, suffix = self.blocks, "weight_scale_inv"
        if f"{name}.weight_scale" in weights:
            blocks, suffix = Blocks(), "weight_scale"
        scale = blocks.take(weights, f"{name}.{suffix}", outputs, inputs)
        rounding = None
        if self.has_input_scale:
            suffix = "activation_scale" if f"{name}.activation_scale" in weights else "input_scale"
            rounding = input_scale(weights, f"{name}.{suffix}", "F8_E4M3")

        def linear() -> Linear:
            spread = blocks.spread(scale.to_float32(), outputs, inputs)
            return Linear(weight, spread, input_quantization=rounding)

        return linear


def input_scale(weights: Weights, name: str, dtype: str) -> InputQuantization:
    """Read the one scale of a projection's inputs.

    Raises:
        CheckpointError: It is missing, or no positive number.
    """
    value = float(weights.take(name, (1,), ()).to_float32().item())
    if not (np.isfinite(value) and value > 0):
        raise weights.fail(f"{name} is {value}, not above 0")
    return InputQuantization(dtype, value)


def read_fp8(settings: Settings) -> Form:
    """Parse ``quantization_config``.

    Raises:
        CheckpointError: A value has no meaning that is implemented.
    """
    settings.refuse_unless("fmt", "e4m3")
    settings.refuse_unless("activation_scheme", "dynamic", "static")
    settings.refuse_unless("kv_cache_scheme")
    blocks = Blocks(128, 128)  # if the key is absent, as in transformers
    if "weight_block_size" in settings.names:
        is_null = settings.get("weight_block_size") is None
        blocks = Blocks() if is_null else read_blocks(settings, "weight_block_size")
    fp8 = Fp8(blocks, settings.get("activation_scheme") == "static")
    return Form("fp8", fp8.read, None, blocks.group_size)
