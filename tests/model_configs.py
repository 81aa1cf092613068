"""Numbers of the public ``config.json`` of the models that our recipes name, what a pre-flight reads.

The models' pages could not be opened here. The numbers were found in public repositories that quote them:
Llama 3.1 and 3.3 in several tables of model sizes, Llama 3.2 1B and Qwen2.5 in quoted ``config.json`` files;
``max_position_embeddings``, ``rope_scaling`` and ``eos_token_id`` of the Llamas are from memory, UNCONFIRMED.
``test_memory_plan.py`` checks them against the published numbers of parameters.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.tiny_engines import DEMO_TOKENIZER

_LLAMA3 = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
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

CONFIGS: dict[str, dict[str, Any]] = {
    "Llama-3.1-8B-Instruct": {
        **_LLAMA3,
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "intermediate_size": 14336,
    },
    "Llama-3.3-70B-Instruct": {
        **_LLAMA3,
        "hidden_size": 8192,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "intermediate_size": 28672,
    },
    "Llama-3.1-405B-Instruct": {
        **_LLAMA3,
        "hidden_size": 16384,
        "num_hidden_layers": 126,
        "num_attention_heads": 128,
        "intermediate_size": 53248,
    },
    "Llama-3.2-1B-Instruct": {
        **_LLAMA3,
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "head_dim": 64,
        "intermediate_size": 8192,
        "rope_scaling": {**_LLAMA3["rope_scaling"], "factor": 32.0},
        "tie_word_embeddings": True,
    },
    "Qwen2.5-32B-Instruct": {
        **_QWEN2,
        "hidden_size": 5120,
        "num_hidden_layers": 64,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "intermediate_size": 27648,
        "tie_word_embeddings": False,
        "vocab_size": 152064,
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
}


_END_TOKENS = {
    "llama": {"<|end_of_text|>": 128001, "<|eom_id|>": 128008, "<|eot_id|>": 128009},
    "qwen2": {"<|endoftext|>": 151643, "<|im_end|>": 151645},
}


def write_model(directory: Path, name: str, **changes: Any) -> Path:
    """A Hugging Face directory without weights; the demo pair's tokenizer with the model's end tokens."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {**CONFIGS[name], **changes}
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tokenizer = json.loads(DEMO_TOKENIZER.read_text(encoding="utf-8"))
    ends = _END_TOKENS[config["model_type"]]
    tokenizer["added_tokens"] = [{"id": number, "content": content} for content, number in ends.items()]
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    return directory
