"""Writes a network as a Hugging Face checkpoint: ``config.json``, ``model.safetensors``, tokenizer.

Hugging Face and vLLM read it. Projections are multiplied out to the floating-point type of the
checkpoint; norms stay float32, because growth has rescaled them (``build/growth.py``).
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from build.checkpoint_config import CheckpointConfig
from build.network import Layer, Linear, Network
from build.tensor_file import Float32Array, Tensor, write_tensors

_TYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


def hugging_face_config(config: CheckpointConfig, end_id: int) -> dict[str, Any]:
    """Content of ``config.json``, with the rotary settings in the spelling of transformers 4 and of 5."""
    scaling: dict[str, Any] | None = None
    if config.rotary_scaling is not None:
        scaling = {"rope_type": config.rotary_scaling.kind, "factor": config.rotary_scaling.factor}
        if config.rotary_scaling.kind == "llama3":
            scaling["low_freq_factor"] = config.rotary_scaling.low_freq_factor
            scaling["high_freq_factor"] = config.rotary_scaling.high_freq_factor
            scaling["original_max_position_embeddings"] = (
                config.rotary_scaling.original_max_position_embeddings
            )
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": config.dtype,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_size,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.norm_epsilon,
        "rope_theta": config.rotary_base,
        "rope_scaling": scaling,
        "rope_parameters": {"rope_type": "default", **(scaling or {}), "rope_theta": config.rotary_base},
        "tie_word_embeddings": config.share_embedding_table,
        "attention_bias": False,
        "mlp_bias": False,
        "use_cache": True,
        "bos_token_id": end_id,
        "eos_token_id": end_id,
    }


def _layer_tensors(config: CheckpointConfig, layer: Layer, dtype: str) -> dict[str, Tensor]:
    heads = config.num_attention_heads * config.head_size
    kv_heads = config.num_key_value_heads * config.head_size
    query, key, value = np.split(layer.qkv.to_float32(), [heads, heads + kv_heads])
    # fc is the gate projection and gate the up projection: TensorRT-LLM's names.
    weights = {
        "self_attn.q_proj": query,
        "self_attn.k_proj": key,
        "self_attn.v_proj": value,
        "self_attn.o_proj": layer.dense.to_float32(),
        "mlp.gate_proj": layer.fc.to_float32(),
        "mlp.up_proj": layer.gate.to_float32(),
        "mlp.down_proj": layer.proj.to_float32(),
    }
    norms = {"input_layernorm": layer.input_norm, "post_attention_layernorm": layer.post_norm}
    return {
        **{f"{name}.weight": Tensor.from_float32(values, dtype) for name, values in weights.items()},
        **{f"{name}.weight": _norm(gain) for name, gain in norms.items()},
    }


def _norm(gain: Float32Array) -> Tensor:
    return Tensor.from_float32(gain, "F32")


def _table(linear: Linear, dtype: str) -> Tensor:
    return Tensor.from_float32(linear.to_float32(), dtype)


def hugging_face_tensors(network: Network) -> dict[str, Tensor]:
    """All tensors by Hugging Face's names; a tied output head is not repeated."""
    dtype = _TYPES[network.config.dtype]
    tensors = {"model.embed_tokens.weight": _table(Linear(network.embedding), dtype)}
    for index in range(network.config.num_hidden_layers):
        layer = _layer_tensors(network.config, network.layer(index), dtype)
        tensors.update({f"model.layers.{index}.{name}": tensor for name, tensor in layer.items()})
    tensors["model.norm.weight"] = _norm(network.final_norm)
    if not network.config.share_embedding_table:
        tensors["lm_head.weight"] = _table(network.lm_head, dtype)
    return tensors


def tokenizer_settings(tokenizer: Path, end_id: int) -> dict[str, Any]:
    """Content of ``tokenizer_config.json``: a tokenizer of any kind, ended by its own end token."""
    added = json.loads(tokenizer.read_text(encoding="utf-8")).get("added_tokens", [])
    end = next((token["content"] for token in added if token["id"] == end_id), None)
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "eos_token": end,
        "pad_token": end,
    }


def write_hugging_face(directory: Path, network: Network, tokenizer: Path, end_id: int) -> None:
    """Write a checkpoint directory.

    Args:
        directory: Made if absent.
        network: Quantized or not; the settings of ``config.json`` are its own.
        tokenizer: ``tokenizer.json``, copied in.
        end_id: Token that ends a text.
    """
    directory.mkdir(parents=True, exist_ok=True)
    write_tensors(directory / "model.safetensors", hugging_face_tensors(network), {"format": "pt"})
    shutil.copyfile(tokenizer, directory / "tokenizer.json")
    documents = {
        "config.json": hugging_face_config(network.config, end_id),
        "generation_config.json": {"bos_token_id": end_id, "eos_token_id": end_id, "pad_token_id": end_id},
        "tokenizer_config.json": tokenizer_settings(tokenizer, end_id),
    }
    for name, document in documents.items():
        (directory / name).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
