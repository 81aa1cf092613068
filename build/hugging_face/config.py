"""Parse the ``config.json`` of a Hugging Face checkpoint.

Keys that the family's class in transformers does not read are ignored, as they are there: people's files hold
many. Keys that it reads are either computed or refused. ``pard_token`` is read beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from build.checkpoints.settings import Settings, read_json
from build.checkpoints.tensorrt_llm import translated_config
from build.hugging_face.families import FAMILIES, REFUSED, ExpertNames, Family
from build.hugging_face.quantized.compressed_tensors import read_compressed_tensors
from build.hugging_face.quantized.form import Form
from build.hugging_face.quantized.fp8 import read_fp8
from build.hugging_face.quantized.gguf import read_gguf
from build.hugging_face.quantized.mxfp4 import read_mxfp4
from build.hugging_face.quantized.tensorrt_llm import read_tensorrt_llm
from build.hugging_face.quantized.words import read_awq, read_gptq
from build.hugging_face.rope import max_positions, rotary_of
from build.networks.experts import ExpertSizes
from build.networks.network import LayerConfig, NetworkConfig, Rotary
from build.networks.recurrent import CONVOLUTION_TAPS, RecurrentSizes
from pipelines.errors import CheckpointError

_ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
_DEFAULTS: Mapping[str, Any] = {
    "rope_theta": 1e4,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
}


def read_config(directory: Path) -> dict[str, Any]:
    """Read ``config.json`` of a checkpoint; that of TensorRT-LLM is translated.

    Raises:
        CheckpointError: It cannot be read, or not be translated.
    """
    path = directory / "config.json"
    raw = read_json(path)
    return translated_config(raw, path) if "architecture" in raw else raw


def family_of(raw: Mapping[str, Any], path: Path) -> Family:
    """Return the family of a checkpoint.

    Raises:
        CheckpointError: It is not supported; the message names the missing feature if that is known.
    """
    settings = Settings(raw, path)
    model_type, architectures = settings.get("model_type"), settings.items("architectures", str)
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is not None and (architectures or family.architectures)[0] in family.architectures:
        return family
    missing = REFUSED.get(str(model_type), "a family of networks that is not implemented")
    raise CheckpointError(
        f"{path} describes a network that the embedded runtime cannot compute: "
        f"model_type={model_type!r:.80}, architectures={architectures!r:.80}: needs {missing}; supported: "
        f"{', '.join(sorted(FAMILIES))}",
        "use a pair of a supported family",
    )


def parse_network_config(raw: Mapping[str, Any], path: Path, max_seq_len: int = 1) -> NetworkConfig:
    """Parse a checkpoint's settings.

    Args:
        raw: The parsed JSON.
        path: The file, for error messages.
        max_seq_len: Longest text that will be computed, tokens; it decides the factors of LongRoPE.

    Raises:
        CheckpointError: A key is missing or invalid, or needs a feature that is not implemented.
    """
    family = family_of(raw, path)
    whole = Settings(raw, path)
    part = whole if family.wrapper is None else whole.part(family.wrapper)
    if part is None:
        raise whole.fail(f"no {family.wrapper}, the settings of the text model")
    text = {"dtype": _dtype(whole), **part.values}
    if "tie_word_embeddings" in raw:  # transformers reads it beside the settings of the text model
        text["tie_word_embeddings"] = raw["tie_word_embeddings"]
    # null overrides a default, as in transformers
    settings = Settings({**_DEFAULTS, **family.defaults, **text}, path)
    form = read_form(raw, path)
    settings.refuse_unless(
        "hidden_activation" if "hidden_activation" in family.defaults else "hidden_act", family.activation
    )
    if not family.caps_scores:
        settings.refuse_unless("attn_logit_softcapping")
    settings.refuse_unless("use_bidirectional_attention", False)
    settings.refuse_unless("rope_interleaved", False)
    heads, hidden = settings.integer("num_attention_heads"), settings.integer("hidden_size")
    kv_heads = settings.integer("num_key_value_heads", heads)
    if heads % kv_heads or (settings.get("head_dim") is None and hidden % heads):
        raise settings.fail(
            f"num_attention_heads={heads} must be a multiple of num_key_value_heads={kv_heads}, and divide "
            f"hidden_size={hidden} unless head_dim is set"
        )
    head_size = settings.integer("head_dim", hidden // heads)
    attention_scale = settings.number("query_pre_attn_scalar", head_size) ** -0.5
    rotary = rotary_of(settings, "full_attention", head_size, max_seq_len)
    return NetworkConfig(
        architecture=(whole.items("architectures", str) or family.architectures)[0],
        dtype=_dtype(settings),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        hidden_size=hidden,
        head_size=head_size,
        # Families whose layers all have experts leave it out.
        intermediate_size=settings.integer("intermediate_size", settings.get("moe_intermediate_size")),
        vocab_size=settings.integer("vocab_size"),
        max_position_embeddings=max_positions(settings, rotary, max_seq_len),
        norm_epsilon=settings.number("rms_norm_eps"),
        layers=_with_experts(settings, family, _layers(settings, family, rotary, head_size, max_seq_len)),
        share_embedding_table=settings.flag("tie_word_embeddings"),
        quant_algo=None if form is None else form.name,
        quant_bits=None if form is None else form.bits,
        group_size=1 if form is None else form.group_size,
        rounds_activations=form is not None and form.rounds_activations,
        biases=_biases(settings, family),
        activation="clamped_swiglu" if family.clamps else _ACTIVATIONS[family.activation],
        attention_scale=settings.number("attention_multiplier", attention_scale),
        attention_softcap=_number_or_none(settings, "attn_logit_softcapping"),
        has_sinks=family.has_sinks,
        embedding_multiplier=hidden**0.5
        if family.scales_embedding
        else settings.number("embedding_multiplier", 1.0),
        residual_multiplier=settings.number("residual_multiplier", 1.0),
        logits_divisor=settings.number("logits_scaling", 1.0),
        logits_softcap=_number_or_none(settings, "final_logit_softcapping"),
        gates_attention=family.has_recurrent_layers,
        recurrence=_recurrence(settings) if family.has_recurrent_layers else None,
        experts=None if family.experts is None else _experts(settings, family.experts),
        mask_token_id=None if whole.get("pard_token") is None else _mask_token(whole, settings),
    )


def _mask_token(whole: Settings, settings: Settings) -> int:
    """Return the token that stands for unknown ones (PARD, arXiv 2504.18583)."""
    token, vocab_size = whole.integer("pard_token"), settings.integer("vocab_size")
    if token >= vocab_size:
        raise whole.fail(f"pard_token={token} is no token: vocab_size={vocab_size}")
    return token


def _recurrence(settings: Settings) -> RecurrentSizes:
    settings.refuse_unless("attn_output_gate", True)
    settings.refuse_unless("linear_conv_kernel_dim", CONVOLUTION_TAPS)
    names = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")
    return RecurrentSizes(*(settings.integer(f"linear_{name}") for name in names))


def _experts(settings: Settings, names: ExpertNames) -> ExpertSizes:
    settings.refuse_unless("clip_qkv")
    settings.refuse_unless("swiglu_limit", 7.0)
    settings.refuse_unless("qkv_bias", True)
    count = settings.integer("num_experts", settings.get("num_local_experts"))
    num_chosen = settings.integer("num_experts_per_tok")
    if num_chosen > count:
        raise settings.fail(f"num_experts_per_tok={num_chosen} is above num_experts={count}")
    normalizes = settings.flag("norm_topk_prob") if names.normalizes is None else names.normalizes
    shared_size = settings.integer("shared_expert_intermediate_size") if names.has_shared else 0
    return ExpertSizes(count, num_chosen, settings.integer(names.neurons), normalizes, shared_size)


def _number_or_none(settings: Settings, key: str) -> float | None:
    return None if settings.get(key) is None else settings.number(key)


def _biases(settings: Settings, family: Family) -> tuple[str, ...]:
    attention = ("qkv", "dense") if settings.flag("attention_bias") else ()
    mlp = ("fc", "gate", "proj") if settings.flag("mlp_bias") else ()
    return family.biases or (*attention, *mlp)


def _dtype(settings: Settings) -> str:
    return settings.text("dtype") or settings.text("torch_dtype") or "float32"


def _layers(
    settings: Settings, family: Family, rotary: Rotary, head_size: int, max_seq_len: int
) -> tuple[LayerConfig, ...]:
    if family.has_recurrent_layers:
        kinds = _kinds(settings, "linear_attention", "full_attention_interval")
        if all(kinds):
            raise settings.fail(f"{len(kinds)} recurrent layers, and none with full_attention")
        return tuple(LayerConfig(None if kind else rotary, is_recurrent=kind) for kind in kinds)
    windows = _windows(settings, family)
    local = rotary
    if settings.get("rope_local_base_freq") is not None:
        local = rotary_of(settings, "sliding_attention", head_size, max_seq_len)
    has_rotary = settings.get("no_rope_layers")  # 1 for layers that have it
    if not family.skips_rotary:
        has_rotary = [1] * len(windows)
    elif has_rotary is None:
        interval = settings.integer("no_rope_layer_interval", 4)
        has_rotary = [(index + 1) % interval != 0 for index in range(len(windows))]
    if not isinstance(has_rotary, list) or len(has_rotary) < len(windows):
        raise settings.fail(
            f"no_rope_layers={has_rotary!r:.80} must be a list of {len(windows)} times 0 or 1"
        )
    return tuple(
        LayerConfig(None if not has_rotary[index] else local if window else rotary, window)
        for index, window in enumerate(windows)
    )


def _with_experts(
    settings: Settings, family: Family, layers: tuple[LayerConfig, ...]
) -> tuple[LayerConfig, ...]:
    """Say which layers have experts: all, or every n-th, without some."""
    if family.experts is None:
        return layers
    step, without = settings.integer("decoder_sparse_step", 1), {*settings.items("mlp_only_layers", int)}
    return tuple(
        replace(layer, has_experts=(index + 1) % step == 0 and index not in without)
        for index, layer in enumerate(layers)
    )


def _windows(settings: Settings, family: Family) -> list[int | None]:
    """Return the attention window of each layer."""
    count = settings.integer("num_hidden_layers")
    width = settings.get("sliding_window")
    if family.windows == "refused":
        settings.refuse_unless("use_sliding_window", False)
    if width is None or family.windows in ("none", "refused"):
        return [None] * count
    window = settings.integer("sliding_window")
    if family.windows == "all":
        return [window] * count
    if family.windows == "from_max_window_layers":
        if not settings.flag("use_sliding_window"):
            return [None] * count
        if settings.get("layer_types") is None:
            full = settings.integer("max_window_layers", 28)
            return [window if index >= full else None for index in range(count)]
    period = None if family.windows == "every_second" else "sliding_window_pattern"
    return [window if is_local else None for is_local in _kinds(settings, "sliding_attention", period)]


def _kinds(settings: Settings, other: str, interval: str | None) -> list[bool]:
    """Return for each layer whether it is of the other kind than full attention.

    Args:
        settings: The checkpoint's settings.
        other: Name of the other kind in ``layer_types``.
        interval: Key of the number n if every n-th layer has full attention by default; None for 2.
    """
    count, kinds = settings.integer("num_hidden_layers"), settings.get("layer_types")
    if kinds is None:
        period = 2 if interval is None else settings.integer(interval)
        return [(index + 1) % period != 0 for index in range(count)]
    if (
        not isinstance(kinds, list)
        or len(kinds) != count
        or any(kind not in ("full_attention", other) for kind in kinds)
    ):
        raise settings.fail(f"layer_types={kinds!r:.200} must be {count} times full_attention or {other}")
    return [kind == other for kind in kinds]


_FORMS: Mapping[str, Callable[[Settings], Form]] = {
    "awq": read_awq,
    "compressed-tensors": read_compressed_tensors,
    "fp8": read_fp8,
    "gguf": read_gguf,
    "gptq": read_gptq,
    "mxfp4": read_mxfp4,
    "tensorrt_llm": read_tensorrt_llm,
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
    method = section.text("quant_method")
    if method is None or method not in _FORMS:
        raise section.fail(
            f"quant_method={method!r:.80}; supported: {', '.join(_FORMS)}",
            "use the checkpoint that it was quantized from, with quantization: int8 or int4 in the recipe",
        )
    return _FORMS[method](section)
