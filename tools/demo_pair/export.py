"""Write a trained model as an unquantized TensorRT-LLM checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from build.checkpoints.checkpoint import Tensor, write_checkpoint
from tools.demo_pair.model import ModelConfig, Weights


def checkpoint_config(config: ModelConfig) -> dict[str, Any]:
    """Return ``config.json`` of the checkpoint of a model."""
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
    """Write ``config.json``, ``rank0.safetensors`` (bfloat16) and ``tokenizer.json`` into ``directory``."""
    write_checkpoint(
        directory,
        checkpoint_config(config),
        {name: _bfloat16(tensor) for name, tensor in sorted(weights.items())},
    )
    (directory / "tokenizer.json").write_text(tokenizer_json, encoding="utf-8")


def _bfloat16(tensor: torch.Tensor) -> Tensor:
    bits = tensor.detach().bfloat16().contiguous().view(torch.int16).numpy().view(np.uint16)
    return Tensor("BF16", tuple(bits.shape), bits)
