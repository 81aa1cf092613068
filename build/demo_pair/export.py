"""Writes a trained model as an unquantized TensorRT-LLM checkpoint, and reads it back for evaluation."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import torch

from build.demo_pair.model import ModelConfig, Weights


def checkpoint_config(config: ModelConfig) -> dict[str, Any]:
    """Returns the checkpoint's ``config.json`` for a model's shape."""
    return {
        "producer": {"name": "draftproof"},
        "architecture": "LlamaForCausalLM",
        "dtype": "bfloat16",
        "logits_dtype": "float32",
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "hidden_size": config.hidden,
        "intermediate_size": config.feed_forward,
        "norm_epsilon": config.epsilon,
        "vocab_size": config.vocabulary,
        "max_position_embeddings": config.max_positions,
        "hidden_act": "silu",
        "head_size": config.head_size,
        "position_embedding_type": "rope_gpt_neox",
        "rotary_base": config.rotary_base,
        "rotary_scaling": None,
        "share_embedding_table": True,
        "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1},
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
    }


def export_model(directory: Path, config: ModelConfig, weights: Weights, tokenizer_json: str) -> None:
    """Writes ``config.json``, ``rank0.safetensors`` (bfloat16) and ``tokenizer.json`` into ``directory``."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(checkpoint_config(config), indent=2) + "\n", encoding="utf-8")
    (directory / "tokenizer.json").write_text(tokenizer_json, encoding="utf-8")
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    parts: list[bytes] = []
    offset = 0
    for name in sorted(weights):
        tensor = weights[name].detach().bfloat16().contiguous()
        data = tensor.view(torch.int16).numpy().tobytes()
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
        parts.append(data)
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    (directory / "rank0.safetensors").write_bytes(struct.pack("<Q", len(encoded)) + encoded + b"".join(parts))


def load_model(directory: Path) -> Weights:
    """Reads the weights that :func:`export_model` wrote, as float32."""
    data = (directory / "rank0.safetensors").read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    weights: Weights = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            raw = torch.frombuffer(bytearray(data[8 + length + begin : 8 + length + end]), dtype=torch.bfloat16)
            weights[name] = raw.view(entry["shape"]).float()
    return weights
