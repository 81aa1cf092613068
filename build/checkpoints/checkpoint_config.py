"""Parse the ``config.json`` of a TensorRT-LLM checkpoint strictly: unknown settings are rejected."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from build.checkpoints.settings import Settings
from build.checkpoints.stored_linear import FORMS
from build.networks.network import LayerConfig, NetworkConfig, Rotary, RotaryScaling

_HAS_QKV_BIAS = {"LlamaForCausalLM": False, "MistralForCausalLM": False, "Qwen2ForCausalLM": True}


def _rotary_scaling(settings: Settings) -> RotaryScaling | None:
    scaling = settings.part("rotary_scaling")
    kind = "default" if scaling is None else scaling.get("rope_type", scaling.get("type"))
    if scaling is None or kind == "default":
        return None
    if kind == "linear":
        return RotaryScaling("linear", scaling.number("factor"))
    if kind != "llama3":
        raise settings.fail(f"rotary_scaling of type {kind!r:.80}; supported: llama3, linear")
    return llama3_scaling(scaling)


def llama3_scaling(scaling: Settings, original: int | None = None) -> RotaryScaling:
    """Return the scaling of Llama 3.

    Args:
        scaling: Its settings.
        original: Context of the training if they do not name it.

    Raises:
        CheckpointError: One is missing or invalid.
    """
    low, high = scaling.number("low_freq_factor"), scaling.number("high_freq_factor")
    if low >= high:
        raise scaling.fail(f"high_freq_factor={high:g} must be above low_freq_factor={low:g}")
    length = scaling.integer("original_max_position_embeddings", original)
    return RotaryScaling("llama3", scaling.number("factor"), low, high, length)


def head_sizes(settings: Settings, key: str) -> tuple[int, int, int, int]:
    """Return the heads of queries and of keys, the hidden size, and the features of a head.

    Args:
        settings: Settings of the network.
        key: Name of the features of a head, which may be left out.

    Raises:
        CheckpointError: One is missing or invalid, or they do not fit together.
    """
    heads, hidden = settings.integer("num_attention_heads"), settings.integer("hidden_size")
    kv_heads = settings.integer("num_key_value_heads", heads)
    if heads % kv_heads or (settings.get(key) is None and hidden % heads):
        raise settings.fail(
            f"num_attention_heads={heads} must be a multiple of num_key_value_heads={kv_heads}, and divide "
            f"hidden_size={hidden} unless {key} is set"
        )
    return heads, kv_heads, hidden, settings.integer(key, hidden // heads)


def _quant_algo(settings: Settings) -> str | None:
    quantization = settings.part("quantization") or Settings({}, settings.path)
    algo = quantization.text("quant_algo")
    if algo not in FORMS:
        raise settings.fail(
            f"quantization.quant_algo={algo!r:.80}; supported: {', '.join(name or 'null' for name in FORMS)}",
            "export with one of these, or without quantization and set quantization: int8 in the recipe",
        )
    excluded = quantization.items("exclude_modules", str)
    if algo is not None and any(not name.endswith("lm_head") for name in excluded):
        raise settings.fail(
            f"quantization.exclude_modules={excluded!r:.80}, and only lm_head may be excluded"
        )
    return algo


def _group_size(settings: Settings, algo: str | None, widths: tuple[int, ...]) -> int:
    """Return how many inputs share an INT4 scale; 1 for formats without groups."""
    quantization = settings.part("quantization")
    if quantization is None or not FORMS[algo].is_packed:
        return 1
    group = quantization.integer("group_size")
    if any(width % group for width in widths):
        raise settings.fail(
            f"quantization.group_size={group} must divide all inputs of projections, {widths}",
            "choose another quantization for this network",
        )
    return group


def parse_config(raw: Mapping[str, Any], path: Path) -> NetworkConfig:
    """Parse ``config.json`` and reject whatever this project does not compute.

    Args:
        raw: The parsed JSON.
        path: The file, for error messages.

    Raises:
        CheckpointError: A key is missing, has the wrong type, or has an unsupported value.
    """
    settings = Settings(raw, path)
    architecture = settings.one_of("architecture", *_HAS_QKV_BIAS)
    settings.one_of("hidden_act", "silu", "swiglu")
    settings.refuse_unless("position_embedding_type", "rope_gpt_neox")
    has_qkv_bias = _HAS_QKV_BIAS[architecture]
    settings.one_of("attn_bias", *((True,) if has_qkv_bias else (False, None)))
    for key in ("attention_bias", "mlp_bias", "bias", "lm_head_bias"):
        settings.refuse_unless(key, False)
    for key in ("rotary_pct", "partial_rotary_factor"):
        settings.refuse_unless(key, 1.0)
    for key in ("sliding_window", "residual_mlp", "qk_layernorm"):
        settings.refuse_unless(key, False)
    mapping = settings.part("mapping") or Settings({}, path)
    for key in ("world_size", "tp_size", "pp_size"):
        if mapping.get(key, 1) != 1:
            raise settings.fail(
                f"mapping.{key}={mapping.get(key)!r:.80}, and only checkpoints with a single rank are read",
                "export with tensor and pipeline parallelism of 1",
            )
    if raw.get("rotary_base") is None:
        raise settings.fail(
            "no rotary_base, for which a loader would silently assume 10000",
            "set rope_theta and rope_scaling in model.config before the export (transformers 5 drops them)",
        )
    heads, kv_heads, hidden, head_size = head_sizes(settings, "head_size")
    algo = _quant_algo(settings)
    intermediate_size = settings.integer("intermediate_size")
    layer = LayerConfig(Rotary(settings.number("rotary_base"), head_size, _rotary_scaling(settings)))
    return NetworkConfig(
        architecture=architecture,
        dtype=settings.one_of("dtype", "bfloat16", "float16", "float32"),
        layers=(layer,) * settings.integer("num_hidden_layers"),
        attention_scale=head_size**-0.5,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        hidden_size=hidden,
        head_size=head_size,
        intermediate_size=intermediate_size,
        vocab_size=settings.integer("vocab_size"),
        max_position_embeddings=settings.integer("max_position_embeddings"),
        norm_epsilon=settings.number("norm_epsilon"),
        share_embedding_table=settings.flag("share_embedding_table"),
        quant_algo=algo,
        group_size=_group_size(settings, algo, (hidden, heads * head_size, intermediate_size)),
        biases=("qkv",) if has_qkv_bias else (),
    )
