"""The numbers of ``config.json`` that preflight reads, of the public models that our recipes name.

The models of up to 8 billion parameters, and where their numbers come from, are in
``benchmarks/rehearsal/published.py``. The larger ones have the same settings apart from their sizes, which
come from several tables of model sizes; Qwen3 32B is from memory, UNCONFIRMED. ``test_memory_plan.py``
checks all against the published numbers of parameters.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.rehearsal.published import MODELS
from tests.support.tiny_engines import DEMO_TOKENIZER, added_token

_SMALL = {
    model.rpartition("/")[2]: dict(settings)
    for model, settings in MODELS.items()
    if settings["model_type"] in ("llama", "qwen2", "qwen3") and "SmolLM" not in model
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
