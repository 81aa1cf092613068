"""The numbers of ``config.json`` that preflight reads, of the public models that our recipes name.

Qwen3 comes from rasbt/LLMs-from-scratch (which sizes tie embeddings is from memory), Llama from tables of
model sizes, Qwen2.5 from quoted ``config.json`` files. The larger models have the same settings apart from
their sizes; Qwen3 32B is from memory, UNCONFIRMED. ``test_memory_plan.py`` checks all against the published
numbers of parameters.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.tiny_engines import DEMO_TOKENIZER, added_token

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
_SMALL: dict[str, dict[str, Any]] = {
    "Qwen3-8B": {
        **_QWEN3,
        "hidden_size": 4096,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "intermediate_size": 12288,
        "tie_word_embeddings": False,
    },
    "Qwen3-4B": {
        **_QWEN3,
        "hidden_size": 2560,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "intermediate_size": 9728,
        "tie_word_embeddings": True,
    },
    "Qwen3-0.6B": {
        **_QWEN3,
        "hidden_size": 1024,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "intermediate_size": 3072,
        "tie_word_embeddings": True,
    },
    "Qwen2.5-0.5B-Instruct": {
        **_QWEN2,
        "hidden_size": 896,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "intermediate_size": 4864,
        "tie_word_embeddings": True,
        "vocab_size": 151936,
    },
    "Llama-3.1-8B-Instruct": {
        **_LLAMA3,
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "intermediate_size": 14336,
    },
    "Llama-3.2-1B-Instruct": {
        **_LLAMA3,
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "head_dim": 64,
        "intermediate_size": 8192,
        "rope_scaling": {**_LLAMA3_ROPE, "factor": 32.0},
        "tie_word_embeddings": True,
    },
}

CONFIGS: dict[str, dict[str, Any]] = {
    **_SMALL,
    "Llama-3.3-70B-Instruct": {
        **_SMALL["Llama-3.1-8B-Instruct"],
        "hidden_size": 8192,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "intermediate_size": 28672,
    },
    "Llama-3.1-405B-Instruct": {
        **_SMALL["Llama-3.1-8B-Instruct"],
        "hidden_size": 16384,
        "num_hidden_layers": 126,
        "num_attention_heads": 128,
        "intermediate_size": 53248,
    },
    "Qwen2.5-32B-Instruct": {
        **_SMALL["Qwen2.5-0.5B-Instruct"],
        "hidden_size": 5120,
        "num_hidden_layers": 64,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "intermediate_size": 27648,
        "tie_word_embeddings": False,
        "vocab_size": 152064,
    },
    "Qwen3-32B": {
        **_SMALL["Qwen3-8B"],
        "hidden_size": 5120,
        "num_hidden_layers": 64,
        "num_attention_heads": 64,
        "intermediate_size": 25600,
    },
}


_QWEN_ENDS = {"<|endoftext|>": 151643, "<|im_end|>": 151645}
_END_TOKENS = {
    "llama": {"<|end_of_text|>": 128001, "<|eom_id|>": 128008, "<|eot_id|>": 128009},
    "qwen2": _QWEN_ENDS,
    "qwen3": _QWEN_ENDS,
}


def write_model(directory: Path, name: str, **changes: Any) -> Path:
    """Write a Hugging Face directory without weights, with the demo tokenizer and the model's end tokens."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {**CONFIGS[name], **changes}
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tokenizer = json.loads(DEMO_TOKENIZER.read_text(encoding="utf-8"))
    ends = _END_TOKENS[config["model_type"]]
    tokenizer["added_tokens"] = [added_token(content, number) for content, number in ends.items()]
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    return directory
