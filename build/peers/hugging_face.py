"""Writes a network as a Hugging Face checkpoint: ``config.json``, ``model.safetensors``, tokenizer.

Hugging Face and vLLM read it. INT8 projections keep their bits, in the form of the ``compressed-tensors``
package with activations rounded to int8 per token at run time; others are multiplied out to the
floating-point type of the checkpoint. Norms stay float32, because growth has rescaled them
(``build/growth.py``).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from build.checkpoint_config import CheckpointConfig
from build.linear import Linear
from build.network import Layer, Network
from build.tensor_file import Float32Array, Tensor, write_tensors

_MODEL_TYPES = {"LlamaForCausalLM": "llama", "MistralForCausalLM": "mistral", "Qwen2ForCausalLM": "qwen2"}
_TYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


def hugging_face_config(config: CheckpointConfig, end_ids: Sequence[int]) -> dict[str, Any]:
    """Content of ``config.json``, with the rotary settings in the spelling of transformers 4 and of 5."""
    scaling: dict[str, Any] | None = None
    if config.rotary_scaling is not None:
        rotary = config.rotary_scaling
        scaling = {"rope_type": rotary.kind, "factor": rotary.factor}
        if rotary.kind == "llama3":
            scaling["low_freq_factor"] = rotary.low_freq_factor
            scaling["high_freq_factor"] = rotary.high_freq_factor
            scaling["original_max_position_embeddings"] = rotary.original_max_position_embeddings
    return {
        "architectures": [config.architecture],
        "model_type": _MODEL_TYPES[config.architecture],
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
        "attention_bias": False,  # of Llama; Qwen2 has those of q, k and v whatever is said
        "mlp_bias": False,
        "sliding_window": None,
        "use_cache": True,
        "bos_token_id": end_ids[0],
        "eos_token_id": _one_or_all(end_ids),
    }


def _int8(strategy: str, *, dynamic: bool) -> dict[str, Any]:
    return {"num_bits": 8, "type": "int", "symmetric": True, "strategy": strategy, "dynamic": dynamic}


def _one_or_all(end_ids: Sequence[int]) -> int | list[int]:
    return end_ids[0] if len(end_ids) == 1 else list(end_ids)


def quantization_config() -> dict[str, Any]:
    """The key ``quantization_config`` of ``config.json`` where projections are INT8."""
    group = {
        "targets": ["Linear"],
        "weights": _int8("channel", dynamic=False),
        "input_activations": _int8("token", dynamic=True),
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }


def _split(linear: Linear, sizes: list[int]) -> list[Linear]:
    """Parts of a projection along its outputs."""
    borders = np.cumsum(sizes)[:-1]
    weights = np.split(linear.weight.data, borders)
    biases: list[Float32Array | None] = [None] * len(sizes)
    if linear.bias is not None:
        biases = list(np.split(linear.bias, borders))
    scales: list[Float32Array | None] = [linear.scale] * len(sizes)
    if linear.scale is not None and len(linear.scale) > 1:  # an E4M3 weight has one for all outputs
        scales = list(np.split(linear.scale, borders))
    return [
        replace(linear, weight=Tensor(linear.weight.dtype, weight.shape, weight), scale=scale, bias=bias)
        for weight, scale, bias in zip(weights, scales, biases, strict=True)
    ]


def _projection(name: str, linear: Linear, dtype: str) -> Iterator[tuple[str, Tensor]]:
    if linear.is_weight_only_int8 and linear.scale is not None:
        yield f"{name}.weight", linear.weight
        yield f"{name}.weight_scale", _in_float32(linear.scale)
    else:
        yield f"{name}.weight", Tensor.from_float32(linear.to_float32(), dtype)
    if linear.bias is not None:
        yield f"{name}.bias", Tensor.from_float32(linear.bias, dtype)


def _in_float32(values: Float32Array) -> Tensor:
    return Tensor.from_float32(values, "F32")


def _layer_tensors(config: CheckpointConfig, layer: Layer, dtype: str) -> Iterator[tuple[str, Tensor]]:
    kv_size = config.num_key_value_heads * config.head_size
    sizes = [config.num_attention_heads * config.head_size, kv_size, kv_size]
    for name, part in zip("qkv", _split(layer.qkv, sizes), strict=True):
        yield from _projection(f"self_attn.{name}_proj", part, dtype)
    yield from _projection("self_attn.o_proj", layer.dense, dtype)
    # fc is the gate projection and gate the up projection: TensorRT-LLM's names.
    yield from _projection("mlp.gate_proj", layer.fc, dtype)
    yield from _projection("mlp.up_proj", layer.gate, dtype)
    yield from _projection("mlp.down_proj", layer.proj, dtype)
    yield "input_layernorm.weight", _in_float32(layer.input_norm)
    yield "post_attention_layernorm.weight", _in_float32(layer.post_norm)


def hugging_face_tensors(network: Network) -> dict[str, Tensor]:
    """All tensors by Hugging Face's names; a tied output head is not repeated, and no head is INT8."""
    config = network.config
    dtype = _TYPES[config.dtype]
    embedding = Linear(network.embedding)
    tensors = {"model.embed_tokens.weight": Tensor.from_float32(embedding.to_float32(), dtype)}
    for index in range(config.num_hidden_layers):
        for name, tensor in _layer_tensors(config, network.layer(index), dtype):
            tensors[f"model.layers.{index}.{name}"] = tensor
    tensors["model.norm.weight"] = _in_float32(network.final_norm)
    if not config.share_embedding_table:
        tensors["lm_head.weight"] = Tensor.from_float32(network.lm_head.to_float32(), dtype)
    return tensors


def tokenizer_settings(tokenizer: Path, end_id: int) -> dict[str, Any]:
    """Content of ``tokenizer_config.json``: whatever ``tokenizer.json`` says, ended by its end token."""
    added = json.loads(tokenizer.read_text(encoding="utf-8")).get("added_tokens", [])
    end = next((token["content"] for token in added if token["id"] == end_id), None)
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "eos_token": end,
        "pad_token": end,
    }


def write_hugging_face(directory: Path, network: Network, tokenizer: Path, end_ids: Sequence[int]) -> None:
    """Write a checkpoint directory.

    Args:
        directory: Made if absent.
        network: Projections in the form in which they shall be stored.
        tokenizer: ``tokenizer.json``, copied in.
        end_ids: Tokens that end a text.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tensors = hugging_face_tensors(network)
    write_tensors(directory / "model.safetensors", tensors, {"format": "pt"})
    config = hugging_face_config(network.config, end_ids)
    if any(name.endswith("weight_scale") for name in tensors):
        config["quantization_config"] = quantization_config()
    shutil.copyfile(tokenizer, directory / "tokenizer.json")
    documents = {
        "config.json": config,
        "generation_config.json": {
            "bos_token_id": end_ids[0],
            "eos_token_id": _one_or_all(end_ids),
            "pad_token_id": end_ids[0],
        },
        "tokenizer_config.json": tokenizer_settings(tokenizer, end_ids[0]),
    }
    for name, document in documents.items():
        (directory / name).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
