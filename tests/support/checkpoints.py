"""Random checkpoints in each quantization that the embedded runtime reads, and their logits in float64.

The reference follows the definition of Llama, with explicit loops over positions in numpy. It shares nothing
with the graph under test except the decoding of the stored weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from build.checkpoints.tensor_file import Float32Array, Tensor, e4m3_values
from build.checkpoints.tensorrt_llm import LINEARS
from build.networks.linear import InputQuantization, Linear
from build.networks.network import Layer, Network
from build.networks.source import open_network
from build.networks.weight_only import apply_quantization
from build.openvino.engine import EngineSettings, write_engine
from build.recipe import EngineRecipe, KvCache
from tests.support.tiny_engines import random_weights, tiny_config, write_checkpoint, write_tokenizer

Float64Array = npt.NDArray[np.float64]

LLAMA3_SCALING = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def encode_e4m3(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Encode each value as the nearest E4M3 code, ties to even, saturating at 448."""
    finite = np.array([code for code in range(256) if code & 127 != 127 and code != 128], np.uint8)
    order = np.argsort(e4m3_values()[finite])
    codes, numbers = finite[order], e4m3_values()[finite][order]
    middles = (numbers[1:] + numbers[:-1]) / 2
    below, above = (codes[np.searchsorted(middles, values, side)] for side in ("left", "right"))
    encoded: npt.NDArray[np.uint8] = np.where(below % 2 == 0, below, above)
    return encoded


INT8_STEP = 1 / 16  # inputs range from -8 to 8
FP8_STEP = 1 / 64  # inputs range from -7 to 7
GROUP = 128


def _fp8(values: Float32Array, rng: np.random.Generator) -> dict[str, Tensor]:
    scale = np.array([np.abs(values).max() / 448], np.float32)
    return {
        "weight": Tensor("F8_E4M3", values.shape, encode_e4m3(values / scale)),
        "weights_scaling_factor": _floats(scale),
        "activation_scaling_factor": _floats([FP8_STEP]),
    }


def _w8a16(values: Float32Array, rng: np.random.Generator) -> dict[str, Tensor]:
    scale = np.abs(values).max(axis=1) / 127
    weight = np.rint(values / scale[:, None]).astype(np.int8)
    return {"weight": Tensor("I8", weight.shape, weight), "weights_scaling_factor": _floats(scale)}


def _smooth_quant(values: Float32Array, rng: np.random.Generator) -> dict[str, Tensor]:
    prequant = rng.uniform(0.5, 2, values.shape[1]).astype(np.float32)
    return {
        **_w8a16(values / prequant, rng),
        "activation_scaling_factor": _floats([INT8_STEP]),
        "prequant_scaling_factor": _floats(prequant),
    }


def _int4(values: Float32Array, rng: np.random.Generator) -> dict[str, Tensor]:
    prequant = rng.uniform(0.5, 2, values.shape[1]).astype(np.float32)
    groups = (values / prequant).reshape(len(values), -1, GROUP)
    scale = (np.abs(groups).max(axis=2) / 7).astype(np.float32)
    codes = np.rint(groups / scale[:, :, None]).astype(np.int8).reshape(values.shape) & 15
    packed = (codes[0::2] | codes[1::2] << 4).astype(np.int8)  # two outputs in a byte
    return {
        "weight": Tensor("I8", packed.shape, packed),
        "weights_scaling_factor": _floats(scale),
        "prequant_scaling_factor": _floats(prequant),
    }


def _int4_fp8(values: Float32Array, rng: np.random.Generator) -> dict[str, Tensor]:
    tensors = _int4(values, rng)
    largest = tensors["weights_scaling_factor"].data.max() * 7
    return {
        **tensors,
        "weights_scaling_factor_2": _floats([largest / 448]),
        "activation_scaling_factor": _floats([FP8_STEP]),
    }


def _floats(values: Any) -> Tensor:
    array = np.asarray(values, np.float32)
    return Tensor("F32", array.shape, array)


QUANTIZERS = {
    "FP8": _fp8,
    "W8A16": _w8a16,
    "W8A8_SQ_PER_CHANNEL": _smooth_quant,
    "W4A16_AWQ": _int4,
    "W4A8_AWQ": _int4_fp8,
}


def quantize_tensors(tensors: dict[str, Tensor], algo: str) -> dict[str, Tensor]:
    """Quantize the projections in a form of ``QUANTIZERS``, as ModelOpt lays them out; keep the rest."""
    rng = np.random.default_rng(0)
    quantized = dict(tensors)
    for name, tensor in tensors.items():
        prefix = name.removesuffix(".weight")
        if prefix.endswith((*LINEARS,)):
            for part, made in QUANTIZERS[algo](tensor.to_float32(), rng).items():
                quantized[f"{prefix}.{part}"] = made
    return quantized


def mapping_of(ranks: int) -> dict[str, int]:
    """The ``mapping`` of a TensorRT-LLM checkpoint that is split by tensor parallelism."""
    return {"world_size": ranks, "tp_size": ranks, "pp_size": 1}


def make_checkpoint(
    directory: Path, algo: str | None = None, *, seed: int = 0, weights_dtype: str = "BF16", **changes: Any
) -> Network:
    """Write and read back a random checkpoint.

    Args:
        algo: None, or one of ``QUANTIZERS``.
        weights_dtype: ``BF16``, ``F16`` or ``F32``, for tensors that are not quantized.
        **changes: Keys of ``config.json``.
    """
    config = tiny_config(**changes)
    config["quantization"] = {"quant_algo": algo, "kv_cache_quant_algo": None}
    if algo is not None:
        config["quantization"].update(exclude_modules=["lm_head"], group_size=GROUP)
    tensors = random_weights(config, seed, weights_dtype)
    write_checkpoint(directory, config, tensors if algo is None else quantize_tensors(tensors, algo))
    write_tokenizer(directory / "tokenizer.json", config["vocab_size"])
    return open_network(directory).read()


def _norm(x: Float64Array, gain: npt.NDArray[np.float32] | None, epsilon: float) -> Float64Array:
    assert gain is not None
    scaled: Float64Array = x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * gain
    return scaled


def _angles(network: Network, length: int) -> Float64Array:
    """Return rotary angles [length, head_size / 2], scaled for Llama 3 as in Meta's ``apply_scaling``."""
    rotary = network.config.layers[0].rotary
    assert rotary is not None
    frequencies = []
    for pair in range(rotary.size // 2):
        frequency = rotary.base ** (-2 * pair / rotary.size)
        scaling = rotary.scaling
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


def _round(x: Float64Array, rounding: InputQuantization) -> Float64Array:
    """Round to the grid of INT8 or, through float16, of E4M3."""
    scaled = x / rounding.scale
    if rounding.dtype == "I8":
        rounded = np.clip(np.rint(scaled), -128, 127)
    else:
        with np.errstate(over="ignore"):  # beyond float16 it is infinite, and then 448
            halves = scaled.astype(np.float16)
        rounded = e4m3_values()[encode_e4m3(halves.astype(np.float32))]
    result: Float64Array = rounded.astype(np.float64) * rounding.scale
    return result


def project(x: Float64Array, linear: Linear) -> Float64Array:
    """Project inputs [n, in] to outputs [n, out], rounded to the checkpoint's scales."""
    if linear.prequant is not None:
        x = x * linear.prequant
    if linear.input_quantization is not None:
        x = _round(x, linear.input_quantization)
    projected: Float64Array = x @ linear.stored_values().astype(np.float64).T
    return projected if linear.bias is None else projected + linear.bias


def _attention(x: Float64Array, layer: Layer, network: Network, angles: Float64Array) -> Float64Array:
    config = network.config
    heads, kv_heads, size = config.num_attention_heads, config.num_key_value_heads, config.head_size
    length = len(x)
    joined = np.concatenate([project(x, part) for part in layer.qkv], axis=-1)
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
    return project(outputs.reshape(length, -1), layer.dense)


def reference_logits(network: Network, token_ids: npt.NDArray[Any]) -> Float64Array:
    """Return logits [n, vocab] of n tokens in float64; weights and inputs are rounded as stored."""
    epsilon = network.config.norm_epsilon
    x = network.embedding.to_float32()[token_ids].astype(np.float64)
    angles = _angles(network, len(token_ids))
    for index in range(network.config.num_hidden_layers):
        layer = network.layer(index)
        x = x + _attention(_norm(x, layer.input_norm, epsilon), layer, network, angles)
        inner = _norm(x, layer.post_norm, epsilon)
        gate, up = project(inner, layer.fc), project(inner, layer.gate)
        x = x + project(gate / (1 + np.exp(-gate)) * up, layer.proj)
    return project(_norm(x, network.final_norm, epsilon), network.lm_head)


def mean_kl(reference: npt.NDArray[Any], logits: npt.NDArray[Any]) -> float:
    """Return the mean over positions of KL(softmax(reference) || softmax(logits)), in nats."""

    def log_softmax(x: npt.NDArray[Any]) -> Float64Array:
        shifted = np.asarray(x, np.float64) - x.max(axis=1, keepdims=True)
        normalised: Float64Array = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        return normalised

    p, q = log_softmax(reference), log_softmax(logits)
    return float((np.exp(p) * (p - q)).sum(axis=1).mean())


def build_checkpoint_engine(
    directory: Path, algo: str | None, *, kv: str = "float32", lm_head: str = "checkpoint", **changes: Any
) -> Path:
    """Build an engine from a random checkpoint."""
    checkpoint = make_checkpoint(directory / "checkpoint", algo, **changes)
    network = apply_quantization(checkpoint, "checkpoint", lm_head)
    recipe = EngineRecipe("", "checkpoint", num_threads=2, kv_cache=KvCache(kv))
    settings = EngineSettings("target", "test", recipe, (0,), "f" * 64)
    write_engine(directory / "engine", network, directory / "checkpoint" / "tokenizer.json", settings)
    return directory / "engine"
