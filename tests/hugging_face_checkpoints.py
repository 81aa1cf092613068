"""Small random Hugging Face checkpoints, written without torch, and recipes of pairs of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from build.network import network_from_checkpoint
from build.peers.hugging_face import write_hugging_face
from build.recipe import Recipe, parse_recipe
from build.tensor_file import Tensor, read_tensors, write_tensors
from tests.fixtures_checkpoints import make_checkpoint

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


def make_hugging_face(directory: Path, model_type: str = "llama", *, seed: int = 0, **changes: Any) -> Path:
    """Write a checkpoint of 2 layers of 256 features; keyword arguments are keys of TensorRT-LLM's config."""
    sizes: dict[str, Any] = {"hidden_size": 256, "share_embedding_table": False, **changes}
    if model_type == "qwen2":
        sizes.update(architecture="Qwen2ForCausalLM", attn_bias=True)
    made = directory.parent / f"{directory.name}-made"
    network = network_from_checkpoint(make_checkpoint(made, seed=seed, **sizes))
    write_hugging_face(directory, network, made / "tokenizer.json", end_ids=[0, 7])
    change_config(directory, model_type=model_type, architectures=[ARCHITECTURES[model_type]])
    return directory


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
    """A recipe with a short calibration text, quick to quantize."""
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
