"""What a TensorRT-LLM ``config.json`` says, parsed strictly: an unknown setting is refused, not guessed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build.stored_linear import FORMS
from pipelines.errors import CheckpointError

_HAS_QKV_BIAS = {"LlamaForCausalLM": False, "MistralForCausalLM": False, "Qwen2ForCausalLM": True}


@dataclass(frozen=True)
class RotaryScaling:
    """Llama 3's stretching of the rotary frequencies, or plain linear interpolation.

    Attributes:
        kind: ``llama3`` or ``linear``.
        factor: How much longer the context became.
        low_freq_factor: Wavelengths above original length / this are stretched whole (llama3).
        high_freq_factor: Wavelengths below original length / this are left alone (llama3).
        original_max_position_embeddings: Context length before stretching, tokens (llama3).
    """

    kind: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_max_position_embeddings: int = 1


@dataclass(frozen=True)
class CheckpointConfig:
    """The settings of ``config.json`` that the network depends on; names are TensorRT-LLM's."""

    architecture: str
    dtype: str
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    hidden_size: int
    head_size: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    norm_epsilon: float
    rotary_base: float
    rotary_scaling: RotaryScaling | None
    share_embedding_table: bool
    quant_algo: str | None
    group_size: int
    has_qkv_bias: bool


class _Reader:
    """Takes typed values out of a parsed JSON object and words the errors."""

    def __init__(self, raw: Mapping[str, Any], path: Path) -> None:
        self.raw, self.path = raw, path

    def fail(self, values: str, limit: str, remedy: str = "export the checkpoint again") -> CheckpointError:
        return CheckpointError(f"{self.path} cannot be used", values=values, limit=limit, remedy=remedy)

    def integer(self, key: str, default: int | None = None, minimum: int = 1) -> int:
        value = self.raw.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.fail(f"{key}={value!r}", f"{key} must be a whole number of at least {minimum}")
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
            raise self.fail(f"{key}={value!r}", f"supported here: {names}", "use another checkpoint")
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
            f"rotary_scaling of type {kind!r}", "supported here: llama3, linear", "use another checkpoint"
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
    if algo not in tuple(FORMS):  # may be of any type
        raise reader.fail(
            f"quantization.quant_algo={algo!r}",
            f"the embedded runtime computes {', '.join(name or 'null' for name in FORMS)}",
            "export one of these, or an unquantized checkpoint and say quantization: int8 in the recipe",
        )
    excluded = quantization.get("exclude_modules") or []
    if algo is not None and any(not str(name).endswith("lm_head") for name in excluded):
        raise reader.fail(
            f"quantization.exclude_modules={excluded!r}", "only lm_head may be left out of the quantization"
        )
    return algo


def _group_size(reader: _Reader, algo: str | None, widths: tuple[int, ...]) -> int:
    """Inputs that share a scale of INT4; 1 for the other forms, which have no groups."""
    if algo is None or not FORMS[algo].is_packed:
        return 1
    group = _Reader(reader.raw["quantization"], reader.path).integer("group_size")
    if any(width % group for width in widths):
        raise reader.fail(
            f"quantization.group_size={group}, inputs of {', '.join(map(str, widths))}",
            "the inputs of every projection must be whole groups",
            "choose another quantization for this network",
        )
    return group


def parse_config(raw: Any, path: Path) -> CheckpointConfig:
    """Parse ``config.json`` and refuse whatever would make the network compute something else.

    Args:
        raw: The parsed JSON.
        path: The file, for error messages.

    Raises:
        CheckpointError: A key is missing, of the wrong type, or set to something not supported.
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
                "the embedded runtime reads checkpoints of one rank",
                "export with tensor and pipeline parallelism of 1",
            )
    if raw.get("rotary_base") is None:
        raise reader.fail(
            "rotary_base is absent",
            "without it a loader would silently assume 10000",
            "put rope_theta and rope_scaling into model.config before the export (transformers 5 drops them)",
        )
    heads = reader.integer("num_attention_heads")
    kv_heads = reader.integer("num_key_value_heads", heads)
    hidden = reader.integer("hidden_size")
    if heads % kv_heads or ("head_size" not in raw and hidden % heads):
        raise reader.fail(
            f"num_attention_heads={heads}, num_key_value_heads={kv_heads}, hidden_size={hidden}",
            "query heads must be a multiple of key heads, and head_size be given unless heads divide hidden",
        )
    algo = _quant_algo(reader)
    head_size = reader.integer("head_size", hidden // heads)
    intermediate_size = reader.integer("intermediate_size")
    return CheckpointConfig(
        architecture=architecture,
        dtype=reader.only("dtype", ("bfloat16", "float16", "float32")),
        num_hidden_layers=reader.integer("num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        hidden_size=hidden,
        head_size=head_size,
        intermediate_size=intermediate_size,
        vocab_size=reader.integer("vocab_size"),
        max_position_embeddings=reader.integer("max_position_embeddings"),
        norm_epsilon=reader.number("norm_epsilon"),
        rotary_base=reader.number("rotary_base"),
        rotary_scaling=_rotary_scaling(reader),
        share_embedding_table=bool(raw.get("share_embedding_table", False)),
        quant_algo=algo,
        group_size=_group_size(reader, algo, (hidden, heads * head_size, intermediate_size)),
        has_qkv_bias=has_qkv_bias,
    )
