"""Settings of published models: the keys of their ``config.json`` that decide sizes and computation.

The models' own pages could not be opened here. The numbers come from public repositories that quote them:

- Qwen3: rasbt/LLMs-from-scratch; which sizes tie their embeddings is from memory, and
  ``test_published_models.py`` compares the number of parameters that follows from it.
- Llama 3.1 8B: tables of model sizes. Llama 3.2 1B: kevinstephano/thunder_model_blocks. Qwen2.5 0.5B: quoted
  ``config.json`` files.
- SmolLM2 135M: satyasundar/erav3-s13, except for the context, which is that of the 1.7B. SmolLM2 1.7B: quoted
  ``config.json`` files.
- Phi-4-mini: pytorch/executorch, and quoted copies of its configuration class. Its 48 factors for each length
  of context are not known here; they change no cost.
- Gemma 3: google/gemma_pytorch (4B), ml-explore/mlx-swift-lm (270M). Only the text model of the 4B; its
  vocabulary with 64 rows for images is from memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_LLAMA3 = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "rope_scaling": _LLAMA3_ROPE,
    "max_position_embeddings": 131072,
    "num_key_value_heads": 8,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
    "eos_token_id": [128001, 128008, 128009],
}
_SMOLLM2 = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "vocab_size": 49152,
    "eos_token_id": 2,
}
_QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16",
    "eos_token_id": 151645,
}
_QWEN3 = {
    **_QWEN2,
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "attention_bias": False,
    "head_dim": 128,
    "num_key_value_heads": 8,
    "max_position_embeddings": 40960,
    "vocab_size": 151936,
    "eos_token_id": [151645, 151643],
}
_GEMMA3 = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "sliding_window_pattern": 6,
    "query_pre_attn_scalar": 256,
    "head_dim": 256,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "eos_token_id": [1, 106],
}

MODELS: Mapping[str, Mapping[str, Any]] = {
    "Qwen/Qwen3-8B": {
        **_QWEN3,
        "hidden_size": 4096,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "intermediate_size": 12288,
        "tie_word_embeddings": False,
    },
    "Qwen/Qwen3-4B": {
        **_QWEN3,
        "hidden_size": 2560,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "intermediate_size": 9728,
        "tie_word_embeddings": True,
    },
    "Qwen/Qwen3-0.6B": {
        **_QWEN3,
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "intermediate_size": 3072,
        "tie_word_embeddings": True,
    },
    "Qwen/Qwen2.5-0.5B-Instruct": {
        **_QWEN2,
        "hidden_size": 896,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "intermediate_size": 4864,
        "tie_word_embeddings": True,
        "vocab_size": 151936,
    },
    "meta-llama/Llama-3.1-8B-Instruct": {
        **_LLAMA3,
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "intermediate_size": 14336,
    },
    "meta-llama/Llama-3.2-1B-Instruct": {
        **_LLAMA3,
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "head_dim": 64,
        "intermediate_size": 8192,
        "rope_scaling": {**_LLAMA3_ROPE, "factor": 32.0},
        "tie_word_embeddings": True,
    },
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": {
        **_SMOLLM2,
        "hidden_size": 2048,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "intermediate_size": 8192,
        "rope_theta": 130000.0,
    },
    "HuggingFaceTB/SmolLM2-135M-Instruct": {
        **_SMOLLM2,
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "intermediate_size": 1536,
        "rope_theta": 100000.0,
    },
    "microsoft/Phi-4-mini-instruct": {
        "architectures": ["Phi3ForCausalLM"],
        "model_type": "phi3",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.75,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [1.0] * 48},
        "original_max_position_embeddings": 4096,
        "max_position_embeddings": 131072,
        "sliding_window": 262144,
        "hidden_size": 3072,
        "num_hidden_layers": 32,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
        "intermediate_size": 8192,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "vocab_size": 200064,
        "eos_token_id": 199999,
    },
    "google/gemma-3-4b-it": {
        **_GEMMA3,
        "hidden_size": 2560,
        "num_hidden_layers": 34,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "intermediate_size": 10240,
        "sliding_window": 1024,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "max_position_embeddings": 131072,
        "vocab_size": 262208,
    },
    "google/gemma-3-270m-it": {
        **_GEMMA3,
        "hidden_size": 640,
        "num_hidden_layers": 18,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "intermediate_size": 2048,
        "sliding_window": 512,
        "max_position_embeddings": 32768,
        "vocab_size": 262144,
    },
}
"""Settings by id of the Hugging Face hub."""
