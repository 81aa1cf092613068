"""Writes small random Hugging Face checkpoints without torch, and recipes of pairs of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from build.checkpoints.tensor_file import Tensor, read_tensors, write_tensors
from build.hugging_face.write import write_hugging_face
from build.recipe import Recipe, parse_recipe
from tests.support.checkpoints import make_checkpoint

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
}


def make_hugging_face(directory: Path, model_type: str = "llama", *, seed: int = 0, **changes: Any) -> Path:
    """Write a checkpoint of 2 layers of 256 features; keyword arguments are keys of TensorRT-LLM's config."""
    sizes: dict[str, Any] = {"hidden_size": 256, "share_embedding_table": False, **changes}
    if model_type == "qwen2":
        sizes.update(architecture="Qwen2ForCausalLM", attn_bias=True)
    made = directory.parent / f"{directory.name}-made"
    network = make_checkpoint(made, seed=seed, **sizes)
    write_hugging_face(directory, network, made / "tokenizer.json", end_ids=[0, 7])
    change_config(directory, model_type=model_type, architectures=[ARCHITECTURES[model_type]])
    if model_type == "qwen3":
        change_weights(directory, _add_norms_of_heads)
    if model_type == "gemma2":
        change_weights(directory, _add_norms_of_blocks)
    return directory


def _add_norms_of_heads(tensors: dict[str, Tensor]) -> None:
    """Norms of queries and keys, one factor for each of a head's features."""
    rng = np.random.default_rng(0)
    size = len(tensors["model.layers.0.self_attn.k_proj.weight"].data) // 2  # 2 KV heads
    for layer in range(2):
        for kind in "qk":
            values = rng.uniform(0.5, 2, size).astype(np.float32)
            tensors[f"model.layers.{layer}.self_attn.{kind}_norm.weight"] = Tensor.from_float32(
                values, "BF16"
            )


def _add_norms_of_blocks(tensors: dict[str, Tensor]) -> None:
    """Norms before and behind the MLP, one factor for each feature; Gemma adds 1 to the stored ones."""
    for layer in range(2):
        for place in ("pre", "post"):
            norm = tensors[f"model.layers.{layer}.input_layernorm.weight"]
            tensors[f"model.layers.{layer}.{place}_feedforward_layernorm.weight"] = norm


def change_config(directory: Path, **changes: Any) -> None:
    """Set keys of ``config.json``; None removes one."""
    path = directory / "config.json"
    config = {**json.loads(path.read_text(encoding="utf-8")), **changes}
    for key in [key for key, value in changes.items() if value is None]:
        del config[key]
    path.write_text(json.dumps(config), encoding="utf-8")


def change_weights(directory: Path, change: Any) -> None:
    """Let a function change the tensors in place."""
    path = directory / "model.safetensors"
    tensors = {
        name: Tensor(tensor.dtype, tensor.shape, tensor.data.copy())
        for name, tensor in read_tensors(path).items()
    }
    change(tensors)
    write_tensors(path, tensors, {"format": "pt"})


def pair_recipe(folder: Path, draft: dict[str, Any], target: dict[str, Any], **sections: Any) -> Recipe:
    """Return a recipe with a short calibration text, so that it is quick to quantize."""
    text = folder / "calibration.txt"
    if not text.exists():
        text.write_text("def add(first, second):\n    return first + second\n" * 400, encoding="utf-8")
    path = folder / "tiny.yaml"
    calibration = {"text": str(text), "num_samples": 8, "seq_len": 64}
    raw = {
        "name": "tiny",
        "draft": draft,
        "target": target,
        "serving": {"max_seq_len": 256},
        "tensorrt_llm": {"calibration": calibration},
        **sections,
    }
    path.write_text(json.dumps(raw), encoding="utf-8")
    return parse_recipe(raw, path)
