"""``config.json`` as ModelOpt wrote it: what it lacks or gets wrong for our use is put right or refused."""

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
"""The recipe's word -> TensorRT-LLM's ``quant_algo``."""

# Reading of TensorRT-LLM's models/qwen: its network asks for these, and ModelOpt does not write them.
# 8192 is what its own converter assumes; it matters only to log-n attention, which Qwen2 has not.
_QWEN2 = {"qwen_type": "qwen2", "attn_bias": True, "mlp_bias": False, "seq_length": 8192}
_DEFAULT_ROTARY_BASE = 10000.0  # of Llama, Mistral and Qwen2 in transformers, where config.json has none


def finished_config(
    exported: Mapping[str, Any], source: CheckpointSource, quantization: str, end_ids: Sequence[int]
) -> dict[str, Any]:
    """The exported configuration, corrected.

    Args:
        exported: As ModelOpt wrote it.
        source: In Hugging Face's form.
        quantization: The recipe's word.
        end_ids: Tokens that end a text.

    Raises:
        CheckpointError: It says other things than the source or the recipe.
    """
    config = dict(exported)
    quantized = dict(config.get("quantization") or {})
    wanted = QUANT_ALGOS[quantization]
    if quantization == "int8":  # the loader rounds: decision 0017
        quantized = {"quant_algo": wanted, "kv_cache_quant_algo": None}
    elif quantized.get("exclude_modules"):
        quantized["exclude_modules"] = sorted(
            quantized["exclude_modules"]
        )  # ModelOpt's order is that of a set
    config["quantization"] = quantized
    config["logits_dtype"] = "float32"  # ModelOpt's float16 makes ties, which kernels break differently
    if source.config.get("model_type") == "qwen2":
        config.update(_QWEN2)
    config["end_ids"] = list(end_ids)  # ours: TensorRT-LLM keeps keys that it does not know
    base, scaling = rotary_settings(source.config)
    expected = {
        "quant_algo": (quantized.get("quant_algo"), wanted),
        "rotary_base": (config.get("rotary_base"), base),
        "rotary_scaling": (_comparable(config.get("rotary_scaling")), _comparable(scaling)),
    }
    for key, (found, value) in expected.items():
        if found != value:
            raise CheckpointError(
                "the exported config.json is not that of the source",
                values=f"{key}={found!r}",
                limit=f"{value!r} in {source.directory / 'config.json'} and the recipe",
                remedy="install the versions in requirements/build.txt; another exporter writes other keys",
            )
    return config


def rotary_settings(config: Mapping[str, Any]) -> tuple[float, Mapping[str, Any] | None]:
    """Base and scaling in a Hugging Face ``config.json``, in transformers 4's or 5's spelling."""
    scaling = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    base = scaling.pop("rope_theta", config.get("rope_theta", _DEFAULT_ROTARY_BASE))
    is_plain = scaling.get("rope_type", scaling.get("type", "default")) == "default"
    return float(base), None if is_plain else scaling


def _comparable(scaling: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The numbers and the type, however the type's key is spelt."""
    if scaling is None:
        return None
    numbers = {key: float(value) for key, value in scaling.items() if isinstance(value, (int, float))}
    return {"type": scaling.get("rope_type", scaling.get("type")), **numbers}
