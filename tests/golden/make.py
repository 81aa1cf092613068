"""Compute with transformers what ``families.npz`` and ``families.json`` hold."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from build.checkpoints.tensor_file import Tensor, read_tensors, write_tensors
from tests.golden.families import FOLDER, NUM_GREEDY, NUM_PROMPT, ROWS, token_ids, weights_of
from tests.support.family_networks import FAMILY_CONFIGS

_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
_LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.01 * pair for pair in range(32)],
    "long_factor": [1.0 + 2.0 * pair for pair in range(32)],
    "original_max_position_embeddings": 4096,
}
ROPES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 8.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "yarn": _YARN,
    "yarn-1": {**_YARN, "factor": 1.0},
    "yarn-attention": {**_YARN, "attention_factor": 0.7},
    "yarn-betas": {**_YARN, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
    "yarn-mscales": {**_YARN, "mscale": 0.8, "mscale_all_dim": 1.2},
    "yarn-mscale": {**_YARN, "mscale": 0.8},
    "yarn-short": {**_YARN, "original_max_position_embeddings": 8},
    "yarn-by-type": {"type": "yarn", "factor": 4.0},
    "longrope": _LONGROPE,
    "longrope-factor": {**_LONGROPE, "factor": 4.0},
    "longrope-attention": {**_LONGROPE, "attention_factor": 1.3},
    "longrope-su": {**_LONGROPE, "rope_type": "su"},
}
"""Rotary settings of ``config.json``, by name."""

ROPE_LENGTHS = (4096, 4097)
"""Longest texts: up to the original context, and longer."""


def qwen2_config(rope: dict[str, Any] | None, **changes: Any) -> dict[str, Any]:
    """Return a ``config.json`` with these rotary settings."""
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": 256,
        "intermediate_size": 384,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 512,
        "max_position_embeddings": 131072,
        "rope_theta": 1e6,
        "rope_scaling": rope,
        **changes,
    }


def compute_family(name: str) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Return config and shapes of a family's checkpoint, and its logits and greedy tokens."""
    import torch
    import transformers

    torch.set_num_threads(1)  # these networks are too small for more
    config = transformers.AutoConfig.for_model(name.split("-")[0], **FAMILY_CONFIGS[name])
    kinds = transformers.AutoModelForCausalLM
    made = kinds.from_config(config).float()
    document = {**config.to_dict(), "architectures": [type(made).__name__]}
    with tempfile.TemporaryDirectory() as folder:  # experts are stacked in a model, and not in its files
        made.save_pretrained(folder)
        path = Path(folder, "model.safetensors")
        shapes = {key: list(each.shape) for key, each in sorted(read_tensors(path).items())}
        tensors = {key: Tensor("F32", each.shape, each) for key, each in weights_of(name, shapes).items()}
        write_tensors(path, tensors, {"format": "pt"})
        model = kinds.from_pretrained(folder, dtype="float32", attn_implementation="eager").eval()
    ids = token_ids(FAMILY_CONFIGS[name]["vocab_size"]).astype(np.int64)
    tokens = ids[:NUM_PROMPT].tolist()
    with torch.no_grad():
        logits = model(torch.tensor(ids[None])).logits[0].numpy()[ROWS]
        for _ in range(NUM_GREEDY):  # without a cache, so that no shortcut of transformers is the reference
            tokens.append(int(model(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
    arrays = {"logits": logits, "greedy": np.array(tokens[NUM_PROMPT:], np.int32)}
    return {"config": document, "shapes": shapes}, arrays


def compute_ropes() -> dict[str, npt.NDArray[Any]]:
    """Return frequencies and magnitude of all ``ROPES`` at all ``ROPE_LENGTHS``."""
    import transformers
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    found = {}
    for name, rope in ROPES.items():
        kind = rope.get("rope_type", "yarn").replace("su", "longrope")
        for length in ROPE_LENGTHS:
            written = qwen2_config({**rope, "rope_type": kind})
            config = transformers.Qwen2Config(**{**written, "rope_theta": None})
            config.rope_parameters["rope_theta"] = 1e6
            frequencies, magnitude = ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=length)
            found[f"rope.{name}-{length}"] = np.append(frequencies.double().numpy(), magnitude)
    return found


def write(folder: Path = FOLDER) -> None:
    """Write both files."""
    documents, arrays = {}, compute_ropes()
    for name in FAMILY_CONFIGS:
        documents[name], found = compute_family(name)
        arrays |= {f"{name}.{kind}": array for kind, array in found.items()}
        print(name, flush=True)
    np.savez_compressed(folder / "families.npz", **arrays)
    text = json.dumps(documents, sort_keys=True)
    (folder / "families.json").write_text(text + "\n", encoding="utf-8")
