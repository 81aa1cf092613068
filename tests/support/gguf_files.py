"""Writes small GGUF files, and checkpoints as llama.cpp's converter writes them (``conversion/*.py``)."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from tokenizers.pre_tokenizers import ByteLevel

from build.checkpoints.tensor_file import read_tensors

Array = npt.NDArray[Any]
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q8_0": 8, "Q4_K": 12, "BF16": 30}
_KINDS = {np.dtype(np.int32): 5, np.dtype(np.float32): 6}


class Stored(NamedTuple):
    """A tensor of blocks: its type, its shape, outermost first, and its bytes."""

    type: str
    shape: tuple[int, ...]
    data: bytes


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: Any) -> bytes:
    """Return a value with its type before it."""
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value) if 0 <= value < 2**32 else struct.pack("<Iq", 11, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value, list):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_text, value))
    return struct.pack("<IIQ", 9, _KINDS[value.dtype], len(value)) + value.tobytes()


def header_of(metadata: Mapping[str, Any], entries: list[bytes], version: int = 3) -> bytes:
    values = b"".join(_text(name) + _value(value) for name, value in metadata.items())
    return b"GGUF" + struct.pack("<IQQ", version, len(entries), len(metadata)) + values + b"".join(entries)


def entry_of(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
    return _text(name) + sizes + struct.pack("<IQ", kind, offset)


def write_gguf(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, Array | Stored]) -> Path:
    """Write a file; arrays are stored as float32."""
    entries, body = [], b""
    for name, tensor in tensors.items():
        if not isinstance(tensor, Stored):
            tensor = Stored("F32", tensor.shape, np.ascontiguousarray(tensor, np.float32).tobytes())
        body += b"\0" * (-len(body) % 32)
        entries.append(entry_of(name, tensor.shape, TYPES[tensor.type], len(body)))
        body += tensor.data
    header = header_of(metadata, entries)
    path.write_bytes(header + b"\0" * (-len(header) % 32) + body)
    return path


def byte_pairs(size: int = 512, pre: str = "gpt-2") -> dict[str, Any]:
    """Return the metadata of a byte-level tokenizer with a few merges, filled with unused entries."""
    merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "1 2", "12 3", "Ġ Ġ"]
    tokens = ["<|begin|>", "<|im_end|>", *sorted(ByteLevel.alphabet())]
    tokens += [merge.replace(" ", "") for merge in merges] + ["<|extra|>"]
    types = [CONTROL] * 2 + [NORMAL] * (len(tokens) - 3) + [USER_DEFINED]
    tokens += [f"[PAD{number}]" for number in range(len(tokens), size)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(types + [UNUSED] * (size - len(types)), np.int32),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
    }


def pieces() -> dict[str, Any]:
    """Return the metadata of a tokenizer of SentencePiece."""
    words = ["▁", "h", "e", "l", "o", "he", "ll", "hell", "hello", "▁hello", "▁▁", "é", "el"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words, "<user>"]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(words) + [USER_DEFINED]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.scores": -np.arange(len(tokens), dtype=np.float32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_WITH_PAIRS = ("llama", "smollm3", "granite")
_SETTINGS = {
    "num_hidden_layers": "block_count",
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}


def convert(checkpoint: Path, path: Path, **changes: Any) -> Path:
    """Write a Hugging Face checkpoint as a file, as llama.cpp does; ``changes`` are of its metadata."""
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    family = config["model_type"].removesuffix("_text")
    stored = read_tensors(checkpoint / "model.safetensors").items()
    tensors = {
        _name(name, family): _converted(name, tensor.to_float32(), family, config) for name, tensor in stored
    }
    if config.get("tie_word_embeddings"):
        tensors.pop("output.weight", None)
    found = {f"{family}.{new}": config[old] for old, new in _SETTINGS.items() if config.get(old) is not None}
    found |= {f"{family}.{name}": value for name, value in _positions(family, config, tensors).items()}
    if config.get("sliding_window") and family in ("gemma2", "gemma3", "phi3"):
        found[f"{family}.attention.sliding_window"] = config["sliding_window"]
    if config.get("head_dim"):
        found |= {f"{family}.attention.{part}_length": config["head_dim"] for part in ("key", "value")}
    metadata = {"general.architecture": family, **found, **byte_pairs(config["vocab_size"]), **changes}
    return write_gguf(path, {key: value for key, value in metadata.items() if value is not None}, tensors)


def _name(name: str, family: str) -> str:
    module, _, kind = name.rpartition(".")
    layer, _, part = module.removeprefix("model.layers.").partition(".")
    if not layer.isdigit():
        return f"{_NAMES[module]}.{kind}"
    if part == "post_attention_layernorm" and family in ("gemma2", "gemma3", "olmo2"):
        return f"blk.{layer}.post_attention_norm.{kind}"
    return f"blk.{layer}.{_NAMES[part]}.{kind}"


def _converted(name: str, values: Array, family: str, config: Mapping[str, Any]) -> Array:
    if family.startswith("gemma") and name.endswith("norm.weight"):
        return values + np.float32(1)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    number = next((count for part, count in heads.items() if f".{part}." in name), None)
    if family not in _WITH_PAIRS or number is None:
        return values
    return values.reshape(number, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def _positions(family: str, config: Mapping[str, Any], tensors: dict[str, Array]) -> dict[str, Any]:
    """Return settings of the position embedding, and add its tensors."""
    rope = config["rope_parameters"]
    rope = rope.get("full_attention", rope)
    found: dict[str, Any] = {"rope.freq_base": rope["rope_theta"]}
    if family == "gemma2":  # whose base is the default
        del found["rope.freq_base"]
    if rope["rope_type"] in ("linear", "yarn"):
        found |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": rope["factor"]}
    if rope["rope_type"] == "yarn":
        found["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    if family in ("llama", "granite", "smollm3"):
        found["rope.dimension_count"] = size
    if rope["rope_type"] == "llama3":
        tensors["rope_freqs.weight"] = llama3_divisors(rope, size)
    if family == "phi3":
        found["rope.dimension_count"] = int(size * rope.get("partial_rotary_factor", 1.0))
        found["rope.scaling.original_context_length"] = config["original_max_position_embeddings"]
        found.setdefault("attention.sliding_window", 0)
        for kind in ("long", "short"):
            if f"{kind}_factor" in rope:
                tensors[f"rope_factors_{kind}.weight"] = np.array(rope[f"{kind}_factor"], np.float32)
    return found


def llama3_divisors(rope: Mapping[str, Any], size: int) -> Array:
    """Return the table of ``LlamaModel.generate_extra_tensors``."""
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    original, factor = rope["original_max_position_embeddings"], rope["factor"]
    found = []
    for frequency in 1.0 / rope["rope_theta"] ** (np.arange(0, size, 2, dtype=np.float32) / size):
        wavelength = 2 * np.pi / frequency
        if wavelength < original / high:
            found.append(1.0)
        elif wavelength > original / low:
            found.append(factor)
        else:
            smooth = (original / wavelength - low) / (high - low)
            found.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(found, np.float32)
