"""The families of networks that the embedded runtime computes, each by its differences from Llama.

A family is computed as by its class in transformers 5.14 (``transformers/models/<model_type>``). Whatever
is not in this table is refused: with a guessed feature, a network writes fluent but wrong text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

_NORMS = {"input_layernorm": "input_norm", "post_attention_layernorm": "post_norm"}
QUERY_KEY_NORMS = {"self_attn.q_norm": "query_norm", "self_attn.k_norm": "key_norm"}
_OUTPUT_NORMS = {
    "post_attention_layernorm": "attention_output_norm",
    "post_feedforward_layernorm": "mlp_output_norm",
}


@dataclass(frozen=True)
class ExpertNames:
    """Names of a family's experts, their tensors and settings.

    Attributes:
        block: Tensors of a layer's router, ``gate``, and ``experts``.
        projections: Names of an expert's projections, by attribute of ``Layer``.
        neurons: Setting that holds the neurons of an expert.
        normalizes: Whether the chosen probabilities are divided by their sum; None: ``norm_topk_prob`` says.
        are_stacked: Whether there are tensors of all experts together, under the names of gpt-oss.
        has_shared: Whether a further expert computes all tokens.
    """

    block: str = "mlp"
    projections: Mapping[str, str] = field(
        default_factory=lambda: {"fc": "gate_proj", "gate": "up_proj", "proj": "down_proj"}
    )
    neurons: str = "moe_intermediate_size"
    normalizes: bool | None = None
    are_stacked: bool = False
    has_shared: bool = False


@dataclass(frozen=True)
class Family:
    """One ``model_type``.

    Attributes:
        architectures: Class names in ``config.json`` that it covers.
        norms: Tensors of a layer, and the attributes of ``Layer`` that they become.
        norm_offset: Added to each stored gain.
        norms_all_heads: Whether queries and keys are normed over all heads together.
        biases: Projections that always have a bias, under the names of ``Layer``; if empty,
            ``attention_bias`` and ``mlp_bias`` in ``config.json`` decide.
        activation: Only supported value of ``hidden_act`` (``hidden_activation``).
        clamps: Whether it is clamped, as the limits of gpt-oss say.
        windows: Layers that attend to ``sliding_window`` positions unless ``layer_types`` names them:
            ``none``; ``refused``: none, and ``use_sliding_window`` must be false; ``all``;
            ``from_max_window_layers``; ``every_second``, from the first on; or ``pattern``: all but every
            ``sliding_window_pattern``-th.
        skips_rotary: Whether the layers that ``no_rope_layers`` names encode no positions.
        caps_scores: Whether attention scores are capped at ``attn_logit_softcapping``.
        has_sinks: Whether attention has sinks.
        scales_embedding: Whether the embedding is multiplied with the root of the hidden size.
        defaults: Values of keys that ``config.json`` may leave out.
        has_recurrent_layers: Whether layers are recurrent unless ``layer_types`` calls them
            ``full_attention``, or they are every ``full_attention_interval``-th; attention has a gate then.
        experts: Names of its experts; None for one MLP in each layer.
        wrapper: Key that holds the settings of the text model, for models that also see images.
        other_parts: Names of those other parts, whose tensors are ignored.
    """

    architectures: tuple[str, ...]
    norms: Mapping[str, str] = field(default_factory=lambda: _NORMS)
    norm_offset: float = 0.0
    norms_all_heads: bool = False
    biases: tuple[str, ...] = ()
    activation: str = "silu"
    clamps: bool = False
    windows: str = "none"
    skips_rotary: bool = False
    caps_scores: bool = False
    has_sinks: bool = False
    scales_embedding: bool = False
    has_recurrent_layers: bool = False
    experts: ExpertNames | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    wrapper: str | None = None
    other_parts: tuple[str, ...] = ()


_GEMMA_DEFAULTS = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
    "hidden_activation": "gelu_pytorch_tanh",
}
_GEMMA2 = Family(
    ("Gemma2ForCausalLM",),
    norms={
        "input_layernorm": "input_norm",
        "pre_feedforward_layernorm": "post_norm",
        **_OUTPUT_NORMS,
    },
    norm_offset=1.0,
    activation="gelu_pytorch_tanh",
    windows="every_second",
    caps_scores=True,
    scales_embedding=True,
    defaults={
        **_GEMMA_DEFAULTS,
        "vocab_size": 256000,
        "max_position_embeddings": 8192,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
)
_GEMMA3 = replace(
    _GEMMA2,
    architectures=("Gemma3ForCausalLM",),
    norms={**_GEMMA2.norms, **QUERY_KEY_NORMS},
    windows="pattern",
    defaults={
        **_GEMMA_DEFAULTS,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "sliding_window_pattern": 6,
    },
)

_QWEN3_5 = Family(
    ("Qwen3_5ForCausalLM",),
    norms={**_NORMS, **QUERY_KEY_NORMS},
    norm_offset=1.0,
    has_recurrent_layers=True,
    defaults={
        "head_dim": 256,
        "rms_norm_eps": 1e-6,
        "partial_rotary_factor": 0.25,
        "full_attention_interval": 4,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
    },
    other_parts=("mtp",),
)

_QWEN3_5_MOE = replace(
    _QWEN3_5,
    architectures=("Qwen3_5MoeForCausalLM",),
    experts=ExpertNames(normalizes=True, has_shared=True),
)

FAMILIES: Mapping[str, Family] = {
    "llama": Family(("LlamaForCausalLM",)),
    "mistral": Family(
        ("MistralForCausalLM",), windows="all", defaults={"sliding_window": 4096, "num_key_value_heads": 8}
    ),
    "gpt_oss": Family(
        ("GptOssForCausalLM",),
        clamps=True,
        windows="every_second",
        has_sinks=True,
        experts=ExpertNames(neurons="intermediate_size", normalizes=True, are_stacked=True),
        defaults={
            "attention_bias": True,
            "head_dim": 64,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1.5e5,
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 32.0,
                "truncate": False,
                "original_max_position_embeddings": 4096,
            },
            "sliding_window": 128,
        },
    ),
    "mixtral": Family(
        ("MixtralForCausalLM",),
        windows="all",
        experts=ExpertNames(
            "block_sparse_moe", {"fc": "w1", "gate": "w3", "proj": "w2"}, "intermediate_size", normalizes=True
        ),
        defaults={"rms_norm_eps": 1e-5, "rope_theta": 1e6, "num_key_value_heads": 8},
    ),
    "qwen2": Family(("Qwen2ForCausalLM",), biases=("qkv",), windows="from_max_window_layers"),
    "qwen3": Family(
        ("Qwen3ForCausalLM",), norms={**_NORMS, **QUERY_KEY_NORMS}, windows="from_max_window_layers"
    ),
    "qwen3_moe": Family(
        ("Qwen3MoeForCausalLM",),
        norms={**_NORMS, **QUERY_KEY_NORMS},
        windows="refused",
        experts=ExpertNames(),
    ),
    "qwen2_moe": Family(
        ("Qwen2MoeForCausalLM",), biases=("qkv",), windows="refused", experts=ExpertNames(has_shared=True)
    ),
    "qwen3_5_text": _QWEN3_5,
    "qwen3_5": replace(
        _QWEN3_5,
        architectures=("Qwen3_5ForConditionalGeneration",),
        wrapper="text_config",
        other_parts=("mtp", "visual"),
    ),
    "qwen3_5_moe_text": _QWEN3_5_MOE,
    "qwen3_5_moe": replace(
        _QWEN3_5_MOE,
        architectures=("Qwen3_5MoeForConditionalGeneration",),
        wrapper="text_config",
        other_parts=("mtp", "visual"),
    ),
    "smollm3": Family(
        ("SmolLM3ForCausalLM",),
        windows="refused",
        skips_rotary=True,
        defaults={"rope_theta": 2e6, "tie_word_embeddings": True},
    ),
    "phi3": Family(
        ("Phi3ForCausalLM",),
        windows="all",
        defaults={"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096},
    ),
    "gemma2": _GEMMA2,
    "gemma3_text": _GEMMA3,
    "gemma3": replace(
        _GEMMA3,
        architectures=("Gemma3ForConditionalGeneration",),
        wrapper="text_config",
        other_parts=("vision_tower", "multi_modal_projector"),
    ),
    "granite": Family(("GraniteForCausalLM",), defaults={"attention_multiplier": 1.0}),
    "olmo2": Family(
        ("Olmo2ForCausalLM",),
        norms={**_OUTPUT_NORMS, **QUERY_KEY_NORMS},
        norms_all_heads=True,
        defaults={"rms_norm_eps": 1e-5},
    ),
    "olmoe": Family(
        ("OlmoeForCausalLM",),
        norms={**_NORMS, **QUERY_KEY_NORMS},
        norms_all_heads=True,
        experts=ExpertNames(neurons="intermediate_size"),
        defaults={"rms_norm_eps": 1e-5},
    ),
}
"""By ``model_type``."""

REFUSED: Mapping[str, str] = {
    "phimoe": "a router that is not a softmax",
    "granitemoe": "experts whose tensors are stacked",
    "qwen3_next": "stacked projections of recurrent layers",
    "deepseek_v3": "latent attention and groups of experts",
}
"""Features that are missing, by ``model_type``, for the message."""
