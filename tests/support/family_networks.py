"""Save small random networks of every supported family, with transformers itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0 + 0.1 * pair for pair in range(48)],
    "long_factor": [1.0 + 0.3 * pair for pair in range(48)],
    "original_max_position_embeddings": 256,
}
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
_GEMMA3_ROPE = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}

_HYBRID: dict[str, Any] = {
    "num_attention_heads": 4,
    "head_dim": 64,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25},
}
_SHARED = {"shared_expert_intermediate_size": 160}

_CHANGES: dict[str, dict[str, Any]] = {
    "llama": {"rope_parameters": _LLAMA3, "tie_word_embeddings": True},
    "llama-biases": {"attention_bias": True, "mlp_bias": True},
    "mistral": {"sliding_window": 48, "head_dim": 64},
    "qwen2": {"tie_word_embeddings": True},
    "qwen2-windows": {"use_sliding_window": True, "sliding_window": 48, "max_window_layers": 2},
    "qwen3": {"head_dim": 64},
    "qwen3-yarn": {"head_dim": 64, "max_position_embeddings": 64, "rope_parameters": _YARN},
    "qwen3_moe": {  # one layer is dense
        "head_dim": 64,
        "num_experts": 16,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 96,
        "norm_topk_prob": True,
        "mlp_only_layers": [1],
    },
    "mixtral": {"num_local_experts": 4},
    "olmoe": {"num_experts": 8, "num_experts_per_tok": 3},
    "gpt_oss": {
        "head_dim": 64,
        "intermediate_size": 96,
        "num_local_experts": 8,
        "num_experts_per_tok": 3,
        "sliding_window": 48,
        "rope_parameters": {**_YARN, "rope_theta": 1.5e5, "truncate": False},
    },
    "qwen2_moe": {**_SHARED, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 96},
    "qwen3_5_text": _HYBRID,
    "qwen3_5_moe_text": {
        **_HYBRID,
        **_SHARED,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 96,
    },
    "smollm3": {"tie_word_embeddings": True},
    "phi3": {"sliding_window": 47, "num_key_value_heads": 8},
    "phi3-mini4": {  # Phi-4-mini: heads of 128 of which 96 coordinates are rotated
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "rope_parameters": _LONGROPE,
        "original_max_position_embeddings": 256,
        "max_position_embeddings": 1024,
    },
    "phi3-longrope": {  # texts are longer than the original context
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "rope_parameters": {**_LONGROPE, "original_max_position_embeddings": 64},
        "original_max_position_embeddings": 64,
        "max_position_embeddings": 1024,
    },
    "phi3-heads96": {"num_attention_heads": 4, "num_key_value_heads": 4, "hidden_size": 384},
    "gemma2": {  # the factor of the scores is not that of the heads' size, as in Gemma 2 27B
        "head_dim": 64,
        "sliding_window": 48,
        "query_pre_attn_scalar": 48,
        "attn_logit_softcapping": 2.0,
    },
    "gemma2-heads256": {
        "head_dim": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "sliding_window": 48,
        "attn_logit_softcapping": 4.0,
        "final_logit_softcapping": 15.0,
        "tie_word_embeddings": False,  # so that greedy text is more than one token
    },
    "gemma3_text": {
        "head_dim": 64,
        "sliding_window": 48,
        "query_pre_attn_scalar": 64,
        "num_hidden_layers": 7,
        "rope_parameters": _GEMMA3_ROPE,
    },
    "gemma3_text-heads256": {
        "head_dim": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "sliding_window": 48,
        "num_hidden_layers": 7,
    },
    "granite": {
        "embedding_multiplier": 12.0,
        "residual_multiplier": 0.22,
        "attention_multiplier": 0.03,
        "logits_scaling": 8.0,
        "tie_word_embeddings": True,
    },
    "olmo2": {},
}

FAMILY_CONFIGS = {name: {**_SIZES, **changes} for name, changes in _CHANGES.items()}
"""Settings by name: a ``model_type``, and what is special."""


def save_model(name: str, directory: Path, **changes: Any) -> Any:
    """Save a random network and return it, a transformers model in float32.

    Gains of norms differ from 1 and biases from 0, so that a forgotten one changes the logits.

    Args:
        name: One of ``FAMILY_CONFIGS``.
        directory: Created if needed.
        **changes: Settings that differ.
    """
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(name.split("-")[0], **{**FAMILY_CONFIGS[name], **changes})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            random = torch.randn_like(parameter)
            if "norm" in parameter_name:
                parameter.add_(0.2 * random)
            elif "bias" in parameter_name:
                parameter.copy_(0.1 * random)
            else:
                parameter.copy_(random * (0.5 if "embed" in parameter_name else parameter.shape[-1] ** -0.5))
    model.save_pretrained(directory)
    return model
