"""A Llama decoder as functions of a dictionary of weights, and its checkpoint.

Names and layouts of the weights are those of a TensorRT-LLM checkpoint, so that export is a copy. While both
models train together, the draft is an early exit of the target: its first layers and a separate final norm.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from build.checkpoints.tensor_file import Tensor, write_tensors
from build.checkpoints.tensorrt_llm import WEIGHTS

Weights = dict[str, torch.Tensor]
"""Weights by TensorRT-LLM's names."""

EMBEDDING = "transformer.vocab_embedding.weight"
FINAL_NORM = "transformer.ln_f.weight"
EXIT_NORM = "draft.ln_f.weight"
"""Final norm of the early exit, present only while both models train together."""


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Shape of a Llama model."""

    layers: int
    hidden: int = 256
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 64
    feed_forward: int = 768
    vocabulary: int = 2048
    epsilon: float = 1e-5
    rotary_base: float = 10000.0
    max_positions: int = 2048


TARGET = ModelConfig(layers=8)
DRAFT = ModelConfig(layers=2)


def initial_weights(config: ModelConfig, generator: torch.Generator) -> Weights:
    """Draw initial float32 weights; projections that write the residual stream start at zero."""

    def normal(rows: int, columns: int, deviation: float) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) * deviation

    hidden, wide, deviation = config.hidden, config.feed_forward, config.hidden**-0.5
    query, key = config.heads * config.head_size, config.kv_heads * config.head_size
    weights = {EMBEDDING: normal(config.vocabulary, hidden, 0.02), FINAL_NORM: torch.ones(hidden)}
    for layer in range(config.layers):
        prefix = f"transformer.layers.{layer}."
        weights[prefix + "input_layernorm.weight"] = torch.ones(hidden)
        weights[prefix + "attention.qkv.weight"] = normal(query + 2 * key, hidden, deviation)
        weights[prefix + "attention.dense.weight"] = torch.zeros(hidden, query)
        weights[prefix + "post_layernorm.weight"] = torch.ones(hidden)
        weights[prefix + "mlp.fc.weight"] = normal(wide, hidden, deviation)
        weights[prefix + "mlp.gate.weight"] = normal(wide, hidden, deviation)
        weights[prefix + "mlp.proj.weight"] = torch.zeros(hidden, wide)
    return weights


def rotary_tables(config: ModelConfig, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines of the rotary embedding, each float32 ``[positions, head_size]``."""
    half = torch.arange(0, config.head_size, 2, dtype=torch.float32)
    frequencies = config.rotary_base ** (-half / config.head_size)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Apply the rotate-half rotary embedding; ``x`` is ``[..., positions, head_size]``."""
    first, second = x.chunk(2, dim=-1)
    return x * cosines + torch.cat([-second, first], dim=-1) * sines


def rms_norm(x: torch.Tensor, gain: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Apply RMSNorm over the last dimension, in float32."""
    x = x.float()
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + epsilon) * gain


def project_qkv(
    x: torch.Tensor, weights: Weights, prefix: str, config: ModelConfig
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Normalize ``x`` and project it to heads ``[batch, heads, positions, head_size]``."""
    batch, positions, _ = x.shape
    normed = rms_norm(x, weights[prefix + "input_layernorm.weight"], config.epsilon)
    fused = functional.linear(normed, weights[prefix + "attention.qkv.weight"])
    fused = fused.view(batch, positions, config.heads + 2 * config.kv_heads, config.head_size).transpose(1, 2)
    query, key, value = fused.split([config.heads, config.kv_heads, config.kv_heads], dim=1)
    return query, key, value


def finish_block(
    x: torch.Tensor, attended: torch.Tensor, weights: Weights, prefix: str, config: ModelConfig
) -> torch.Tensor:
    """Add the attention's output projection and the feed-forward part to the residual stream ``x``."""
    merged = attended.transpose(1, 2).flatten(2)
    x = x + functional.linear(merged, weights[prefix + "attention.dense.weight"])
    normed = rms_norm(x, weights[prefix + "post_layernorm.weight"], config.epsilon)
    gated = functional.silu(functional.linear(normed, weights[prefix + "mlp.fc.weight"]))
    gated = gated * functional.linear(normed, weights[prefix + "mlp.gate.weight"])
    return x + functional.linear(gated, weights[prefix + "mlp.proj.weight"])


def block(
    x: torch.Tensor,
    weights: Weights,
    layer: int,
    config: ModelConfig,
    tables: tuple[torch.Tensor, torch.Tensor],
) -> torch.Tensor:
    """Apply a decoder layer with causal attention to ``x``, ``[batch, positions, hidden]``."""
    prefix = f"transformer.layers.{layer}."
    query, key, value = project_qkv(x, weights, prefix, config)
    query, key = rotate(query, *tables).to(value.dtype), rotate(key, *tables).to(value.dtype)
    group = config.heads // config.kv_heads
    key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    return finish_block(x, attended, weights, prefix, config)


def logits_of(x: torch.Tensor, weights: Weights, norm: str, config: ModelConfig) -> torch.Tensor:
    """Apply the final norm and the tied output projection."""
    return functional.linear(rms_norm(x, weights[norm], config.epsilon), weights[EMBEDDING])


def forward(
    weights: Weights, config: ModelConfig, tokens: torch.Tensor, tables: tuple[torch.Tensor, torch.Tensor]
) -> torch.Tensor:
    """Return logits ``[batch, positions, vocabulary]`` of a model for ``tokens`` ``[batch, positions]``."""
    x = functional.embedding(tokens, weights[EMBEDDING])
    for layer in range(config.layers):
        x = block(x, weights, layer, config, tables)
    return logits_of(x, weights, FINAL_NORM, config)


def forward_both(
    weights: Weights,
    config: ModelConfig,
    exit_layers: int,
    tokens: torch.Tensor,
    tables: tuple[torch.Tensor, torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logits of the target and of its early exit after ``exit_layers`` layers."""
    x = functional.embedding(tokens, weights[EMBEDDING])
    early = x
    for layer in range(config.layers):
        x = block(x, weights, layer, config, tables)
        if layer == exit_layers - 1:
            early = x
    return logits_of(x, weights, FINAL_NORM, config), logits_of(early, weights, EXIT_NORM, config)


def split_pair(weights: Weights, exit_layers: int) -> tuple[Weights, Weights]:
    """Split jointly trained weights into those of the target and a copy for the draft."""
    target = {name: tensor.detach().clone() for name, tensor in weights.items() if name != EXIT_NORM}
    kept = tuple(f"transformer.layers.{layer}." for layer in range(exit_layers))
    draft = {
        name: tensor.clone() for name, tensor in target.items() if name == EMBEDDING or name.startswith(kept)
    }
    draft[FINAL_NORM] = weights[EXIT_NORM].detach().clone()
    return target, draft


def rounded(weights: Weights) -> Weights:
    """Round weights to bfloat16, and return them as float32."""
    return {name: tensor.detach().bfloat16().float() for name, tensor in weights.items()}


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
    directory.mkdir(parents=True, exist_ok=True)
    write_tensors(directory / WEIGHTS, {name: _bfloat16(tensor) for name, tensor in sorted(weights.items())})
    document = json.dumps(checkpoint_config(config), indent=2) + "\n"
    (directory / "config.json").write_text(document, encoding="utf-8")
    (directory / "tokenizer.json").write_text(tokenizer_json, encoding="utf-8")


def _bfloat16(tensor: torch.Tensor) -> Tensor:
    bits = tensor.detach().bfloat16().contiguous().view(torch.int16).numpy().view(np.uint16)
    return Tensor("BF16", tuple(bits.shape), bits)
