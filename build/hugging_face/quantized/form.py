"""Find the form of the quantized projections of a checkpoint: ``quantization_config`` in ``config.json``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from build.hugging_face.quantized.awq import read_awq
from build.hugging_face.quantized.compressed_tensors import read_compressed_tensors
from build.hugging_face.quantized.fp8 import read_fp8
from build.hugging_face.quantized.gptq import read_gptq
from build.hugging_face.settings import Settings
from build.hugging_face.weights import Weights
from build.networks.linear import Linear


class Form(Protocol):
    """A way to store quantized projections."""

    @property
    def name(self) -> str:
        """Return ``quant_method``."""

    @property
    def bits(self) -> int | None:
        """Return the bits of its integers, the most if there are several; None for FP8."""

    @property
    def group_size(self) -> int:
        """Return the inputs that share a scale, the least if there are several; 1 for all of them."""

    @property
    def rounds_activations(self) -> bool:
        """Return whether it is made for activations that are rounded to INT8 as they come."""

    def read(self, weights: Weights, name: str, outputs: int, inputs: int) -> Callable[[], Linear]:
        """Check the tensors of a projection, and return the function that reads them.

        Args:
            weights: Tensors of the checkpoint.
            name: Name of the projection, such as ``model.layers.0.mlp.up_proj``.
            outputs: Its outputs.
            inputs: Its inputs.

        Raises:
            CheckpointError: A tensor is missing or does not fit the settings; also from that function.
        """


_FORMS: Mapping[str, Callable[[Settings], Form]] = {
    "awq": read_awq,
    "compressed-tensors": read_compressed_tensors,
    "fp8": read_fp8,
    "gptq": read_gptq,
}


def read_form(raw: Mapping[str, Any], path: Path) -> Form | None:
    """Parse ``quantization_config`` of a checkpoint, or of its text model.

    Args:
        raw: The parsed ``config.json``.
        path: The file, for error messages.

    Returns:
        The form; None if the weights are in floating point.

    Raises:
        CheckpointError: A value has no meaning that is implemented.
    """
    whole = Settings(raw, path)
    text = whole.part("text_config") if "text_config" in raw else None
    section = whole.part("quantization_config") or (text and text.part("quantization_config"))
    if section is None:
        return None
    method = section.get("quant_method")
    if method not in _FORMS:
        raise section.fail(
            f"quant_method={method!r:.80}",
            f"supported: {', '.join(_FORMS)}",
            "use the checkpoint that it was quantized from, with quantization: int8 or int4 in the recipe",
        )
    return _FORMS[method](section)
