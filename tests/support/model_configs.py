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


def _sized(family: dict[str, Any], *sizes: int, tied: bool = False, **others: Any) -> dict[str, Any]:
    """Return a model of a family; ``sizes``: features, layers, attention heads, features of the MLP."""
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    return {**family, **dict(zip(names, sizes, strict=True)), "tie_word_embeddings": tied, **others}


_QWEN2_SMALL = {"num_key_value_heads": 2, "vocab_size": 151936}
_QWEN2_LARGE = {"num_key_value_heads": 8, "vocab_size": 152064}
_LLAMA3_SMALL = {"head_dim": 64, "rope_scaling": {**_LLAMA3_ROPE, "factor": 32.0}}

CONFIGS: dict[str, dict[str, Any]] = {
    "Qwen3-0.6B": _sized(_QWEN3, 1024, 28, 16, 3072, tied=True),
    "Qwen3-4B": _sized(_QWEN3, 2560, 36, 32, 9728, tied=True),
    "Qwen3-8B": _sized(_QWEN3, 4096, 36, 32, 12288),
    "Qwen3-32B": _sized(_QWEN3, 5120, 64, 64, 25600),
    "Qwen2.5-0.5B-Instruct": _sized(_QWEN2, 896, 24, 14, 4864, tied=True, **_QWEN2_SMALL),
    "Qwen2.5-32B-Instruct": _sized(_QWEN2, 5120, 64, 40, 27648, **_QWEN2_LARGE),
    "Llama-3.2-1B-Instruct": _sized(_LLAMA3, 2048, 16, 32, 8192, tied=True, **_LLAMA3_SMALL),
    "Llama-3.1-8B-Instruct": _sized(_LLAMA3, 4096, 32, 32, 14336),
    "Llama-3.3-70B-Instruct": _sized(_LLAMA3, 8192, 80, 64, 28672),
    "Llama-3.1-405B-Instruct": _sized(_LLAMA3, 16384, 126, 128, 53248),
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
