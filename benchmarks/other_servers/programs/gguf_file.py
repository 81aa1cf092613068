"""Write a network of the demonstration pair in llama.cpp's format."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np

from build.checkpoints.checkpoint import network_from_checkpoint, read_checkpoint
from build.checkpoints.tensor_file import Float32Array
from build.hugging_face.write import hugging_face_tensors
from build.networks.network import NetworkConfig


def write_gguf(path: Path, checkpoint: Path, tokenizer: Path) -> None:
    """Write a checkpoint as a GGUF file, with matrices in bfloat16 and norms in float32.

    Args:
        path: File to write.
        checkpoint: Folder of the draft or the target.
        tokenizer: Byte-level ``tokenizer.json`` with GPT-2's pretokenizer.
    """
    network = network_from_checkpoint(read_checkpoint(checkpoint))
    config = network.config
    writer = gguf.GGUFWriter(path, "llama")
    _write_settings(writer, config)
    _write_tokenizer(writer, config, tokenizer)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    num_heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in hugging_face_tensors(network).items():
        values = tensor.to_float32()
        for projection, number in num_heads.items():
            if projection in name:
                values = _interleaved(values, number)
        written = names.get_name(name, try_suffixes=(".weight",))
        if values.ndim == 1:
            writer.add_tensor(written, values)
        else:
            kind = gguf.GGMLQuantizationType.BF16
            writer.add_tensor(written, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_settings(writer: gguf.GGUFWriter, config: NetworkConfig) -> None:
    rotary = config.layers[0].rotary
    assert rotary is not None and rotary.scaling is None, "the demonstration pair is a plain Llama"
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_size)
    writer.add_value_length(config.head_size)
    writer.add_rope_dimension_count(config.head_size)
    writer.add_rope_freq_base(rotary.base)
    writer.add_layer_norm_rms_eps(config.norm_epsilon)
    writer.add_vocab_size(config.vocab_size)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)


def _write_tokenizer(writer: gguf.GGUFWriter, config: NetworkConfig, tokenizer: Path) -> None:
    document = json.loads(tokenizer.read_text(encoding="utf-8"))
    names = [f"[unused {token_id}]" for token_id in range(config.vocab_size)]
    kinds = [gguf.TokenType.UNUSED] * config.vocab_size
    for name, token_id in document["model"]["vocab"].items():
        names[token_id], kinds[token_id] = name, gguf.TokenType.NORMAL
    for token in document["added_tokens"]:
        names[token["id"]], kinds[token["id"]] = token["content"], gguf.TokenType.CONTROL
        writer.add_eos_token_id(token["id"])  # the pair's only special token
    writer.add_add_bos_token(False)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(names)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(merge) for merge in document["model"]["merges"]])


def _interleaved(weight: Float32Array, num_heads: int) -> Float32Array:
    """Return rows in the order of llama.cpp, which rotates neighbours instead of halves of a head."""
    halves = weight.reshape(num_heads, 2, -1, weight.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))
