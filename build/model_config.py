"""The numbers of a network, read from any of the three ``config.json`` that a pair goes through.

Hugging Face's, that of a TensorRT-LLM checkpoint, and that of a TensorRT-LLM engine say the same things
under different names. Only these files are read, never weights, so this takes no time on any machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.errors import CheckpointError

# These stretch the frequencies of a network whose max_position_embeddings is already the long one.
_NOT_MULTIPLIED = ("su", "longrope", "llama3", "default")


@dataclass(frozen=True)
class ModelConfig:
    """What pre-flight, memory plan and engine builds need to know of a network.

    Attributes:
        path: The file it was read from.
        is_hugging_face: Whether the directory is Hugging Face's; else it is TensorRT-LLM's.
        architecture: Name of the class.
        dtype: Of the activations: ``bfloat16``, ``float16`` or ``float32``.
        logits_dtype: ``float32`` unless the file says otherwise.
        max_positions: Tokens that it was made for, rotary scaling included as ``trtllm-build`` counts it.
        attention_bias: Whether queries, keys and values have biases.
        quant_algo: TensorRT-LLM's name of the weights' quantization; None for floating point.
        kv_cache_quant_algo: ``FP8``, ``INT8`` or None.
        tp_size: GPUs that the tensors of a TensorRT-LLM checkpoint are split over; 1 for Hugging Face.
        pp_size: Groups of layers, likewise.
    """

    path: Path
    is_hugging_face: bool
    architecture: str
    dtype: str
    logits_dtype: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    max_positions: int
    attention_bias: bool
    quant_algo: str | None
    kv_cache_quant_algo: str | None
    tp_size: int
    pp_size: int

    @property
    def world_size(self) -> int:
        """Ranks, and so files of weights."""
        return self.tp_size * self.pp_size


class _Reader:
    """Takes values out of a parsed JSON object and words the errors."""

    def __init__(self, raw: Mapping[str, Any], path: Path) -> None:
        self.raw, self.path = raw, path

    def integer(self, *keys: str, default: int | None = None) -> int:
        """The first of some keys that is there."""
        value = next((self.raw[key] for key in keys if self.raw.get(key) is not None), default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.fail(f"{keys[0]}={value!r}", f"{keys[0]} must be a whole number of at least 1")
        return value

    def fail(self, values: str, limit: str) -> CheckpointError:
        return CheckpointError(
            f"{self.path} does not describe a network",
            values=values,
            limit=limit,
            remedy="use the config.json that came with the checkpoint",
        )


def read_json(path: Path) -> dict[str, Any]:
    """Parse a JSON object.

    Raises:
        CheckpointError: The file is missing or holds something else.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(
            f"{path} cannot be read",
            values=" ".join(str(error).split()),
            limit="a checkpoint directory holds config.json, weights and tokenizer.json",
            remedy="put the checkpoint there, or name its directory in the recipe",
        ) from None
    if not isinstance(raw, dict):
        raise _Reader({}, path).fail(f"a JSON {type(raw).__name__}", "config.json must be a JSON object")
    return raw


def read_model_config(directory: Path) -> ModelConfig:
    """Read the ``config.json`` of a checkpoint, Hugging Face's or TensorRT-LLM's.

    Raises:
        CheckpointError: It is missing, or lacks a number.
    """
    path = directory / "config.json"
    raw = read_json(path)
    if "architecture" in raw:
        return parse_tensorrt_llm(raw, path)
    if isinstance(raw.get("architectures"), list) and raw["architectures"]:
        return _parse_hugging_face(raw, path)
    raise _Reader(raw, path).fail(
        f"keys {', '.join(list(raw)[:6])}", "Hugging Face's architectures or TensorRT-LLM's architecture"
    )


def parse_tensorrt_llm(raw: Mapping[str, Any], path: Path) -> ModelConfig:
    """Read a TensorRT-LLM checkpoint's configuration, or the ``pretrained_config`` of an engine's.

    Raises:
        CheckpointError: A number is missing.
    """
    mapping, quantization = raw.get("mapping") or {}, raw.get("quantization") or {}
    sizes = _sizes(_Reader(raw, path), raw.get("rotary_scaling"), head_size="head_size")
    return ModelConfig(
        path=path,
        is_hugging_face=False,
        architecture=str(raw.get("architecture")),
        dtype=str(raw.get("dtype")),
        logits_dtype=str(raw.get("logits_dtype", "float32")),
        attention_bias=bool(raw.get("attn_bias", raw.get("attention_bias", False))),
        quant_algo=quantization.get("quant_algo"),
        kv_cache_quant_algo=quantization.get("kv_cache_quant_algo"),
        tp_size=mapping.get("tp_size", 1),
        pp_size=mapping.get("pp_size", 1),
        **sizes,
    )


def _parse_hugging_face(raw: Mapping[str, Any], path: Path) -> ModelConfig:
    architecture = str(raw["architectures"][0])
    # transformers 5 calls it rope_parameters.
    sizes = _sizes(
        _Reader(raw, path), raw.get("rope_scaling") or raw.get("rope_parameters"), head_size="head_dim"
    )
    return ModelConfig(
        path=path,
        is_hugging_face=True,
        architecture=architecture,
        dtype=str(raw.get("dtype") or raw.get("torch_dtype") or "float32"),
        logits_dtype="float32",
        # Qwen2's attention has biases without a key that says so.
        attention_bias=bool(raw.get("attention_bias", architecture == "Qwen2ForCausalLM")),
        quant_algo=None,
        kv_cache_quant_algo=None,
        tp_size=1,
        pp_size=1,
        **sizes,
    )


def _sizes(reader: _Reader, rotary_scaling: Any, head_size: str) -> dict[str, int]:
    heads, hidden = reader.integer("num_attention_heads"), reader.integer("hidden_size")
    kind = factor = None
    if isinstance(rotary_scaling, dict):
        kind = rotary_scaling.get("rope_type", rotary_scaling.get("type", "default"))
        factor = rotary_scaling.get("factor")
    multiplied = factor if kind is not None and kind not in _NOT_MULTIPLIED and factor else 1
    return {
        "num_layers": reader.integer("num_hidden_layers"),
        "num_heads": heads,
        "num_kv_heads": reader.integer("num_key_value_heads", default=heads),
        "head_size": reader.integer(head_size, default=hidden // heads),
        "hidden_size": hidden,
        "intermediate_size": reader.integer("intermediate_size"),
        "vocab_size": reader.integer("vocab_size"),
        "max_positions": int(reader.integer("max_position_embeddings") * multiplied),
    }
