"""Check and complete the ``config.json`` that ModelOpt exports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from build.quantization.source import CheckpointSource
from pipelines.errors import CheckpointError

QUANT_ALGOS: Mapping[str, str | None] = {
    "none": None,
    "int8": "W8A16",
    "fp8": "FP8",
    "int8_sq": "W8A8_SQ_PER_CHANNEL",
    "int4_awq": "W4A16_AWQ",
    "w4a8_awq": "W4A8_AWQ",
}
"""``quantization`` in a recipe -> ``quant_algo`` in TensorRT-LLM."""

# TensorRT-LLM's models/qwen requires these keys (from reading its source), but ModelOpt does not write them.
# ``qwen_type`` alone decides whether the network normalizes queries and keys. Its own converter assumes a
# seq_length of 8192, which matters only for log-n attention; neither family has that.
_QWEN: Mapping[str, Mapping[str, Any]] = {
    "qwen2": {"qwen_type": "qwen2", "attn_bias": True, "mlp_bias": False, "seq_length": 8192},
    "qwen3": {"qwen_type": "qwen3", "attn_bias": False, "mlp_bias": False, "seq_length": 8192},
}
_DEFAULT_ROTARY_BASE = 10000.0  # transformers' default for Llama, Mistral and Qwen


def finished_config(
    exported: Mapping[str, Any], source: CheckpointSource, quantization: str, end_ids: Sequence[int]
) -> dict[str, Any]:
    """Complete the exported configuration, and check it against source and recipe.

    Args:
        exported: Configuration that ModelOpt wrote.
        source: The Hugging Face checkpoint.
        quantization: ``quantization`` in the recipe.
        end_ids: Tokens that end a text.

    Raises:
        CheckpointError: It contradicts the source or the recipe.
    """
    config = dict(exported)
    quantized = dict(config.get("quantization") or {})
    wanted = QUANT_ALGOS[quantization]
    if quantization == "int8":  # weights are rounded on load: docs/decisions/quantization.md
        quantized = {"quant_algo": wanted, "kv_cache_quant_algo": None}
    elif quantized.get("exclude_modules"):
        quantized["exclude_modules"] = sorted(
            quantized["exclude_modules"]
        )  # ModelOpt's order is that of a set
    config["quantization"] = quantized
    config["logits_dtype"] = "float32"  # ModelOpt's float16 causes ties, which kernels break differently
    config.update(_QWEN.get(source.config["model_type"], {}))
    config["end_ids"] = list(end_ids)  # our own key; TensorRT-LLM keeps unknown keys
    base, scaling = rotary_settings(source.config)
    expected = {
        "quant_algo": (quantized.get("quant_algo"), wanted),
        "rotary_base": (config.get("rotary_base"), base),
        "rotary_scaling": (_comparable(config.get("rotary_scaling")), _comparable(scaling)),
    }
    for key, (found, value) in expected.items():
        if found != value:
            raise CheckpointError(
                "the exported config.json does not match its source",
                values=f"{key}={found!r}",
                limit=f"{value!r} in {source.directory / 'config.json'} and the recipe",
                remedy="install the versions in requirements/build.txt; other versions write other keys",
            )
    return config


def rotary_settings(config: Mapping[str, Any]) -> tuple[float, Mapping[str, Any] | None]:
    """Return rotary base and scaling of a Hugging Face ``config.json``, with keys of transformers 4 or 5."""
    scaling = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    base = scaling.pop("rope_theta", config.get("rope_theta", _DEFAULT_ROTARY_BASE))
    is_plain = scaling.get("rope_type", scaling.get("type", "default")) == "default"
    return float(base), None if is_plain else scaling


def _comparable(scaling: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return type and numbers of a rotary scaling, independent of how the key of its type is spelled."""
    if scaling is None:
        return None
    numbers = {key: float(value) for key, value in scaling.items() if isinstance(value, (int, float))}
    return {"type": scaling.get("rope_type", scaling.get("type")), **numbers}
