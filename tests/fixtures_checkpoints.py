"""Random checkpoints in each quantization that the embedded runtime reads, and their logits in float64.

The reference below is written from the definition of Llama, with loops over positions left to numpy
and nothing shared with the graph under test except the decoding of the stored weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from build.checkpoint import LINEARS, Checkpoint, read_checkpoint, write_checkpoint
from build.network import Layer, Network, network_from_checkpoint
from build.tensor_file import Tensor, e4m3_values
from tests.tiny_engines import random_weights, tiny_config, write_tokenizer

Float64Array = npt.NDArray[np.float64]

LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def encode_e4m3(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Nearest E4M3 code of each value, saturating at 448."""
    finite = np.array([code for code in range(256) if code & 127 != 127 and code != 128], np.uint8)
    order = np.argsort(e4m3_values()[finite])
    codes, numbers = finite[order], e4m3_values()[finite][order]
    middles = (numbers[1:] + numbers[:-1]) / 2
    encoded: npt.NDArray[np.uint8] = codes[np.searchsorted(middles, values)]
    return encoded


def quantize_tensors(tensors: dict[str, Tensor], algo: str) -> dict[str, Tensor]:
    """The projections in ``FP8`` or ``W8A16``, as ModelOpt lays them out; the rest as it is."""
    quantized = dict(tensors)
    for name, tensor in tensors.items():
        prefix = name.removesuffix(".weight")
        if not prefix.endswith(LINEARS):
            continue
        values = tensor.to_float32()
        if algo == "FP8":
            scale = np.array([np.abs(values).max() / 448], np.float32)
            weight = Tensor("F8_E4M3", tensor.shape, encode_e4m3(values / scale))
            one = np.array([1.0], np.float32)
            quantized[f"{prefix}.activation_scaling_factor"] = Tensor("F32", (1,), one)
        else:
            scale = (np.abs(values).max(axis=1) / 127).astype(np.float32)
            weight = Tensor("I8", tensor.shape, np.rint(values / scale[:, None]).astype(np.int8))
        quantized[name] = weight
        quantized[f"{prefix}.weights_scaling_factor"] = Tensor("F32", scale.shape, scale)
    return quantized


def make_checkpoint(
    directory: Path, algo: str | None = None, *, seed: int = 0, weights_dtype: str = "BF16", **changes: Any
) -> Checkpoint:
    """Write and read back a random checkpoint.

    Args:
        directory: Where it goes.
        algo: None, ``FP8`` or ``W8A16``.
        seed: Of the weights.
        weights_dtype: ``BF16``, ``F16`` or ``F32`` of what is not quantized.
        **changes: Keys of ``config.json``.
    """
    config = tiny_config(**changes)
    config["quantization"] = {"quant_algo": algo, "kv_cache_quant_algo": None}
    if algo is not None:
        config["quantization"]["exclude_modules"] = ["lm_head"]
    tensors = random_weights(config, seed, weights_dtype)
    write_checkpoint(directory, config, tensors if algo is None else quantize_tensors(tensors, algo))
    write_tokenizer(directory / "tokenizer.json", config["vocab_size"])
    return read_checkpoint(directory)


def _norm(x: Float64Array, gain: npt.NDArray[np.float32], epsilon: float) -> Float64Array:
    scaled: Float64Array = x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * gain
    return scaled


def _angles(network: Network, length: int) -> Float64Array:
    """Rotary angles [length, head_size / 2]; Llama 3's scaling as in Meta's ``apply_scaling``."""
    config = network.config
    frequencies = []
    for pair in range(config.head_size // 2):
        frequency = config.rotary_base ** (-2 * pair / config.head_size)
        scaling = config.rotary_scaling
        if scaling is not None:
            original, factor = scaling.original_max_position_embeddings, scaling.factor
            low, high = scaling.low_freq_factor, scaling.high_freq_factor
            wavelength = 2 * np.pi / frequency
            if scaling.kind == "linear" or wavelength > original / low:
                frequency /= factor
            elif wavelength >= original / high:
                smooth = (original / wavelength - low) / (high - low)
                frequency = (1 - smooth) * frequency / factor + smooth * frequency
        frequencies.append(frequency)
    return np.arange(length)[:, None] * np.array(frequencies)


def _attention(x: Float64Array, layer: Layer, network: Network, angles: Float64Array) -> Float64Array:
    config = network.config
    heads, kv_heads, size = config.num_attention_heads, config.num_key_value_heads, config.head_size
    length = len(x)
    joined = x @ layer.qkv.to_float32().astype(np.float64).T
    query, key, value = np.split(joined, [heads * size, (heads + kv_heads) * size], axis=1)

    def rotated(flat: Float64Array, count: int) -> Float64Array:
        pairs = flat.reshape(length, count, 2, size // 2)
        as_complex = (pairs[:, :, 0] + 1j * pairs[:, :, 1]) * np.exp(1j * angles)[:, None]
        return np.concatenate([as_complex.real, as_complex.imag], axis=-1)

    query, key = rotated(query, heads), rotated(key, kv_heads)
    value = value.reshape(length, kv_heads, size)
    outputs = np.empty((length, heads, size))
    for head in range(heads):
        group = head // (heads // kv_heads)
        scores = query[:, head] @ key[:, group].T / np.sqrt(size)
        scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
        shares = np.exp(scores - scores.max(axis=1, keepdims=True))
        outputs[:, head] = shares / shares.sum(axis=1, keepdims=True) @ value[:, group]
    return outputs.reshape(length, -1) @ layer.dense.to_float32().astype(np.float64).T


def reference_logits(source: Checkpoint | Network, token_ids: npt.NDArray[Any]) -> Float64Array:
    """Logits [n, vocab] of a text of n tokens, computed in float64 with the weights that are stored."""
    network = network_from_checkpoint(source) if isinstance(source, Checkpoint) else source
    epsilon = network.config.norm_epsilon
    x = network.embedding.to_float32()[token_ids].astype(np.float64)
    angles = _angles(network, len(token_ids))
    for index in range(network.config.num_hidden_layers):
        layer = network.layer(index)
        x = x + _attention(_norm(x, layer.input_norm, epsilon), layer, network, angles)
        inner = _norm(x, layer.post_norm, epsilon)
        gate = inner @ layer.fc.to_float32().T
        up = inner @ layer.gate.to_float32().T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ layer.proj.to_float32().T
    logits: Float64Array = _norm(x, network.final_norm, epsilon) @ network.lm_head.to_float32().T
    return logits


def mean_kl(reference: npt.NDArray[Any], logits: npt.NDArray[Any]) -> float:
    """Mean over positions of KL(softmax(reference) || softmax(logits)), nats."""

    def log_softmax(x: npt.NDArray[Any]) -> Float64Array:
        shifted = np.asarray(x, np.float64) - x.max(axis=1, keepdims=True)
        normalised: Float64Array = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        return normalised

    p, q = log_softmax(reference), log_softmax(logits)
    return float((np.exp(p) * (p - q)).sum(axis=1).mean())
