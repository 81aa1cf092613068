"""Parse the ``config.json`` of a TensorRT-LLM checkpoint strictly: unknown settings are rejected."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from build.checkpoints.stored_linear import FORMS
from build.networks.config import LayerConfig, NetworkConfig, Rotary, RotaryScaling
from pipelines.errors import CheckpointError

_HAS_QKV_BIAS = {"LlamaForCausalLM": False, "MistralForCausalLM": False, "Qwen2ForCausalLM": True}


class _Reader:
    """Read typed values from a parsed JSON object."""

    def __init__(self, raw: Mapping[str, Any], path: Path) -> None:
        self.raw, self.path = raw, path

    def fail(self, values: str, limit: str, remedy: str = "export the checkpoint again") -> CheckpointError:
        return CheckpointError(f"{self.path} cannot be used", values=values, limit=limit, remedy=remedy)

    def integer(self, key: str, default: int | None = None, minimum: int = 1) -> int:
        value = self.raw.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.fail(f"{key}={value!r}", f"{key} must be an integer of at least {minimum}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.raw.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            raise self.fail(f"{key}={value!r}", f"{key} must be a number above 0")
        return float(value)

    def only(self, key: str, allowed: tuple[Any, ...], default: Any = None) -> Any:
        value = self.raw.get(key, default)
        if value not in allowed:
            names = ", ".join(str(item) for item in allowed)
            raise self.fail(f"{key}={value!r}", f"supported: {names}", "use another checkpoint")
        return value


def _rotary_scaling(reader: _Reader) -> RotaryScaling | None:
    raw = reader.raw.get("rotary_scaling")
    if raw is None:
        return None
    if not isinstance(raw, dict):
        raise reader.fail(f"rotary_scaling={raw!r}", "rotary_scaling must be null or an object")
    inner = _Reader(raw, reader.path)
    kind = raw.get("rope_type", raw.get("type"))
    if kind == "default":
        return None
    if kind == "linear":
        return RotaryScaling("linear", inner.number("factor"))
    if kind != "llama3":
        raise reader.fail(
            f"rotary_scaling of type {kind!r}", "supported: llama3, linear", "use another checkpoint"
        )
    return RotaryScaling(
        "llama3",
        inner.number("factor"),
        inner.number("low_freq_factor"),
        inner.number("high_freq_factor"),
        inner.integer("original_max_position_embeddings"),
    )


def _quant_algo(reader: _Reader) -> str | None:
    quantization = reader.raw.get("quantization") or {}
    algo = quantization.get("quant_algo")
    if algo not in tuple(FORMS):  # a tuple, because algo may be unhashable
        raise reader.fail(
            f"quantization.quant_algo={algo!r}",
            f"the embedded runtime supports {', '.join(name or 'null' for name in FORMS)}",
            "export with one of these, or without quantization and set quantization: int8 in the recipe",
        )
    excluded = quantization.get("exclude_modules") or []
    if algo is not None and any(not str(name).endswith("lm_head") for name in excluded):
        raise reader.fail(
            f"quantization.exclude_modules={excluded!r}", "only lm_head may be excluded from quantization"
        )
    return algo


def _group_size(reader: _Reader, algo: str | None, widths: tuple[int, ...]) -> int:
    """Return how many inputs share an INT4 scale; 1 for formats without groups."""
    if algo is None or not FORMS[algo].is_packed:
        return 1
    group = _Reader(reader.raw["quantization"], reader.path).integer("group_size")
    if any(width % group for width in widths):
        raise reader.fail(
            f"quantization.group_size={group}, inputs of {', '.join(map(str, widths))}",
            "the number of inputs of every projection must be a multiple of group_size",
            "choose another quantization for this network",
        )
    return group


def parse_config(raw: Any, path: Path) -> NetworkConfig:
    """Parse ``config.json`` and reject whatever this project does not compute.

    Args:
        raw: The parsed JSON.
        path: The file, for error messages.

    Raises:
        CheckpointError: A key is missing, has the wrong type, or has an unsupported value.
    """
    if not isinstance(raw, dict):
        raise _Reader({}, path).fail(f"a JSON {type(raw).__name__}", "config.json must be a JSON object")
    reader = _Reader(raw, path)
    architecture = reader.only("architecture", tuple(_HAS_QKV_BIAS))
    reader.only("hidden_act", ("silu", "swiglu"))
    reader.only("position_embedding_type", ("rope_gpt_neox",), "rope_gpt_neox")
    has_qkv_bias = _HAS_QKV_BIAS[architecture]
    reader.only("attn_bias", (True,) if has_qkv_bias else (False, None))
    for key in ("attention_bias", "mlp_bias", "bias", "lm_head_bias"):
        reader.only(key, (False, None))
    for key in ("rotary_pct", "partial_rotary_factor"):
        reader.only(key, (1.0, None))
    for key in ("sliding_window", "residual_mlp", "qk_layernorm"):
        reader.only(key, (None, False))
    mapping = raw.get("mapping") or {}
    for key in ("world_size", "tp_size", "pp_size"):
        if mapping.get(key, 1) != 1:
            raise reader.fail(
                f"mapping.{key}={mapping[key]!r}",
                "the embedded runtime reads checkpoints with a single rank",
                "export with tensor and pipeline parallelism of 1",
            )
    if raw.get("rotary_base") is None:
        raise reader.fail(
            "no rotary_base",
            "rotary_base is required; without it a loader would silently assume 10000",
            "set rope_theta and rope_scaling in model.config before the export (transformers 5 drops them)",
        )
    heads = reader.integer("num_attention_heads")
    kv_heads = reader.integer("num_key_value_heads", heads)
    hidden = reader.integer("hidden_size")
    if heads % kv_heads or ("head_size" not in raw and hidden % heads):
        raise reader.fail(
            f"num_attention_heads={heads}, num_key_value_heads={kv_heads}, hidden_size={hidden}",
            "num_attention_heads must be a multiple of num_key_value_heads, and divide hidden_size unless "
            "head_size is set",
        )
    algo = _quant_algo(reader)
    head_size = reader.integer("head_size", hidden // heads)
    intermediate_size = reader.integer("intermediate_size")
    layer = LayerConfig(Rotary(reader.number("rotary_base"), head_size, _rotary_scaling(reader)))
    return NetworkConfig(
        architecture=architecture,
        dtype=reader.only("dtype", ("bfloat16", "float16", "float32")),
        layers=(layer,) * reader.integer("num_hidden_layers"),
        attention_scale=head_size**-0.5,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        hidden_size=hidden,
        head_size=head_size,
        intermediate_size=intermediate_size,
        vocab_size=reader.integer("vocab_size"),
        max_position_embeddings=reader.integer("max_position_embeddings"),
        norm_epsilon=reader.number("norm_epsilon"),
        share_embedding_table=bool(raw.get("share_embedding_table", False)),
        quant_algo=algo,
        group_size=_group_size(reader, algo, (hidden, heads * head_size, intermediate_size)),
        biases=("qkv",) if has_qkv_bias else (),
    )
