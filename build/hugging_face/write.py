"""Write a network as a Hugging Face checkpoint: ``config.json``, ``model.safetensors``, tokenizer.

Transformers can load it. Quantized projections are dequantized to the floating-point type of the checkpoint;
norms stay float32.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from build.checkpoints.tensor_file import Float32Array, Tensor, write_tensors
from build.networks.linear import Linear
from build.networks.network import Layer, Network, NetworkConfig

_MODEL_TYPES = {"LlamaForCausalLM": "llama", "MistralForCausalLM": "mistral", "Qwen2ForCausalLM": "qwen2"}
_TYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


def hugging_face_config(config: NetworkConfig, end_ids: Sequence[int]) -> dict[str, Any]:
    """Return ``config.json``, with the rotary settings under the keys of transformers 4 and 5."""
    scaling: dict[str, Any] | None = None
    rotary = config.layers[0].rotary
    assert rotary is not None, "Llama, Mistral and Qwen2 encode positions in each layer"
    if rotary.scaling is not None:
        scaling = {"rope_type": rotary.scaling.kind, "factor": rotary.scaling.factor}
        if rotary.scaling.kind == "llama3":
            scaling["low_freq_factor"] = rotary.scaling.low_freq_factor
            scaling["high_freq_factor"] = rotary.scaling.high_freq_factor
        if rotary.scaling.kind in ("llama3", "yarn"):
            scaling["original_max_position_embeddings"] = rotary.scaling.original_max_position_embeddings
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
        "rope_theta": rotary.base,
        "rope_scaling": scaling,
        "rope_parameters": {"rope_type": "default", **(scaling or {}), "rope_theta": rotary.base},
        "tie_word_embeddings": config.share_embedding_table,
        "attention_bias": False,  # read for Llama only; Qwen2 always has biases for q, k and v
        "mlp_bias": False,
        "sliding_window": None,
        "use_cache": True,
        "bos_token_id": end_ids[0],
        "eos_token_id": _one_or_all(end_ids),
    }


def _one_or_all(end_ids: Sequence[int]) -> int | list[int]:
    return end_ids[0] if len(end_ids) == 1 else list(end_ids)


def _projection(name: str, linear: Linear, dtype: str) -> Iterator[tuple[str, Tensor]]:
    yield f"{name}.weight", Tensor.from_float32(linear.to_float32(), dtype)
    if linear.bias is not None:
        yield f"{name}.bias", Tensor.from_float32(linear.bias, dtype)


def _in_float32(values: Float32Array) -> Tensor:
    return Tensor.from_float32(values, "F32")


def _layer_tensors(config: NetworkConfig, layer: Layer, dtype: str) -> Iterator[tuple[str, Tensor]]:
    kv_size = config.num_key_value_heads * config.head_size
    sizes = [config.num_attention_heads * config.head_size, kv_size, kv_size]
    (stacked,) = layer.qkv
    for name, part in zip("qkv", stacked.split(sizes), strict=True):
        yield from _projection(f"self_attn.{name}_proj", part, dtype)
    yield from _projection("self_attn.o_proj", layer.dense, dtype)
    # fc is the gate projection and gate the up projection: TensorRT-LLM's names.
    yield from _projection("mlp.gate_proj", layer.fc, dtype)
    yield from _projection("mlp.up_proj", layer.gate, dtype)
    yield from _projection("mlp.down_proj", layer.proj, dtype)
    for name, gain in (("input", layer.input_norm), ("post_attention", layer.post_norm)):
        assert gain is not None, "Llama, Mistral and Qwen2 have a norm before each block"
        yield f"{name}_layernorm.weight", _in_float32(gain)


def hugging_face_tensors(network: Network) -> dict[str, Tensor]:
    """Return all tensors under Hugging Face's names; the output head is omitted if it is tied."""
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
    """Return ``tokenizer_config.json`` for a fast tokenizer with the given end token."""
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
        directory: Created if needed.
        network: Its projections are dequantized.
        tokenizer: Path of ``tokenizer.json``, which is copied.
        end_ids: Tokens that end a text.
    """
    directory.mkdir(parents=True, exist_ok=True)
    write_tensors(directory / "model.safetensors", hugging_face_tensors(network), {"format": "pt"})
    shutil.copyfile(tokenizer, directory / "tokenizer.json")
    documents = {
        "config.json": hugging_face_config(network.config, end_ids),
        "generation_config.json": {
            "bos_token_id": end_ids[0],
            "eos_token_id": _one_or_all(end_ids),
            "pad_token_id": end_ids[0],
        },
        "tokenizer_config.json": tokenizer_settings(tokenizer, end_ids[0]),
    }
    for name, document in documents.items():
        (directory / name).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
