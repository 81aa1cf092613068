"""Check what ModelOpt wrote: complete its ``config.json``, and compare its weights with the source.

Every projection is dequantized, joined over all ranks and compared with the source's. Embedding tables, norms
and biases must be equal, and no tensor of the source may be missing. Tensors of a rank have the same names as
in a checkpoint with one rank, but layers are numbered within the rank's pipeline stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from build.checkpoints.tensor_file import AnyArray, Float32Array, Tensor, read_tensors
from build.checkpoints.tensorrt_llm import EMBEDDING, FINAL_NORM, LINEARS, LM_HEAD
from build.hugging_face.quantized.tensorrt_llm import linear_of
from build.networks.linear import Linear
from build.quantization.source import CheckpointSource, tensors_of
from pipelines.errors import CheckpointError

QUANT_ALGOS: Mapping[str, str | None] = {
    "none": None,
    "int8": "W8A16",
    "fp8": "FP8",
    "int8_sq": "W8A8_SQ_PER_CHANNEL",
    "int4_awq": "W4A16_AWQ",
    "w4a8_awq": "W4A8_AWQ",
}
"""``quantization`` in a recipe -> ``quant_algo`` in TensorRT-LLM."""

# TensorRT-LLM's models/qwen requires these keys (from reading its source), but ModelOpt does not write them.
# ``qwen_type`` alone decides whether the network normalizes queries and keys. Its own converter assumes a
# seq_length of 8192, which matters only for log-n attention; neither family has that.
_QWEN: Mapping[str, Mapping[str, Any]] = {
    "qwen2": {"qwen_type": "qwen2", "attn_bias": True, "mlp_bias": False, "seq_length": 8192},
    "qwen3": {"qwen_type": "qwen3", "attn_bias": False, "mlp_bias": False, "seq_length": 8192},
}
_DEFAULT_ROTARY_BASE = 10000.0  # transformers' default for Llama, Mistral and Qwen


def finished_config(
    exported: Mapping[str, Any], source: CheckpointSource, quantization: str, end_ids: Sequence[int]
) -> dict[str, Any]:
    """Complete the exported configuration, and check it against source and recipe.

    Args:
        exported: Configuration that ModelOpt wrote.
        source: The Hugging Face checkpoint.
        quantization: ``quantization`` in the recipe.
        end_ids: Tokens that end a text.

    Raises:
        CheckpointError: It contradicts the source or the recipe.
    """
    config = dict(exported)
    quantized = dict(config.get("quantization") or {})
    wanted = QUANT_ALGOS[quantization]
    if quantization == "int8":  # weights are rounded on load: docs/decisions/models.md
        quantized = {"quant_algo": wanted, "kv_cache_quant_algo": None}
    elif quantized.get("exclude_modules"):
        quantized["exclude_modules"] = sorted(
            quantized["exclude_modules"]
        )  # ModelOpt's order is that of a set
    config["quantization"] = quantized
    config["logits_dtype"] = "float32"  # ModelOpt's float16 causes ties, which kernels break differently
    config.update(_QWEN.get(source.config["model_type"], {}))
    config["end_ids"] = list(end_ids)  # our own key; TensorRT-LLM keeps unknown keys
    base, scaling = rotary_settings(source.config)
    expected = {
        "quant_algo": (quantized.get("quant_algo"), wanted),
        "rotary_base": (config.get("rotary_base"), base),
        "rotary_scaling": (_comparable(config.get("rotary_scaling")), _comparable(scaling)),
    }
    for key, (found, value) in expected.items():
        if found != value:
            raise CheckpointError(
                f"the exported config.json has {key}={found!r}, and {source.directory / 'config.json'} and "
                f"the recipe {value!r}",
                "install the versions in requirements/build.txt; other versions write other keys",
            )
    return config


def rotary_settings(config: Mapping[str, Any]) -> tuple[float, Mapping[str, Any] | None]:
    """Return rotary base and scaling of a Hugging Face ``config.json``, with keys of transformers 4 or 5."""
    scaling = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    base = scaling.pop("rope_theta", config.get("rope_theta", _DEFAULT_ROTARY_BASE))
    is_plain = scaling.get("rope_type", scaling.get("type", "default")) == "default"
    return float(base), None if is_plain else scaling


def _comparable(scaling: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return type and numbers of a rotary scaling, independent of how the key of its type is spelled."""
    if scaling is None:
        return None
    numbers = {key: float(value) for key, value in scaling.items() if isinstance(value, (int, float))}
    return {"type": scaling.get("rope_type", scaling.get("type")), **numbers}


LARGEST_ERRORS: Mapping[str | None, float] = {
    None: 0.002,
    "W8A16": 0.002,
    "FP8": 0.04,
    "W8A8_SQ_PER_CHANNEL": 0.05,
    "W4A16_AWQ": 0.15,
    "W4A8_AWQ": 0.15,
}
"""Largest relative error (Frobenius norm) of a projection that rounding explains, by ``quant_algo``.

Without an algorithm and with W8A16, weights are floating point, and only float32 is rounded. SmoothQuant
moves outliers of the inputs into columns of the weights, whose rows are then rounded more coarsely: by 0.8 %
on random weights, and by 2.2 % on the demonstration pair's draft with a short text.
"""

# TensorRT-LLM's names: fc is the gate projection and gate the up projection.
_PARTS = {
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.dense": ("self_attn.o_proj",),
    "mlp.fc": ("mlp.gate_proj",),
    "mlp.gate": ("mlp.up_proj",),
    "mlp.proj": ("mlp.down_proj",),
}
_NORMS = {"input_layernorm": "input_layernorm", "post_layernorm": "post_attention_layernorm"}
_HEAD_NORMS = {"attention.q_layernorm": "self_attn.q_norm", "attention.k_layernorm": "self_attn.k_norm"}
_SPLIT_BY_INPUT = ("attention.dense", "mlp.proj")


@dataclass(frozen=True)
class Measured:
    """Result of a comparison.

    Attributes:
        largest_error: Largest relative error of a projection.
        projection: Name of that projection.
        largest_kv_scale: Largest scale of the FP8 KV cache; None without one.
    """

    largest_error: float
    projection: str
    largest_kv_scale: float | None


def check_finite(source: CheckpointSource) -> None:
    """Check that all weights are finite, because calibration would spread NaN into every scale.

    Raises:
        CheckpointError: A tensor, named in the message, has a weight that is not finite.
    """
    for path in source.weight_files:
        for name, tensor in read_tensors(path).items():
            if not _is_finite(tensor):
                raise CheckpointError(
                    f"{path} contains weights that are NaN or infinite: {name}",
                    "copy or train the model again",
                )


def _is_finite(tensor: Tensor) -> bool:
    if tensor.dtype == "BF16":
        return not bool(((tensor.data & 0x7F80) == 0x7F80).any())
    return tensor.data.dtype.kind != "f" or bool(np.isfinite(tensor.data).all())


def compare(directory: Path, config: Mapping[str, Any], source: CheckpointSource) -> Measured:
    """Compare an exported checkpoint with the Hugging Face checkpoint it was made from.

    Args:
        directory: Directory with ``rank*.safetensors``.
        config: Its ``config.json``.
        source: The Hugging Face checkpoint.

    Raises:
        CheckpointError: A file or tensor is missing, or differs from the source by more than rounding, or
            the source has a tensor that the checkpoint does not.
    """
    ranks = [
        read_tensors(directory / f"rank{rank}.safetensors") for rank in range(config["mapping"]["world_size"])
    ]
    original = tensors_of(source)
    algo = config["quantization"].get("quant_algo")
    worst, where = 0.0, ""
    try:
        for name, stored, wanted in _floating_pairs(ranks, original, config):
            relative_error(directory, name, stored, wanted, None)
        for name, stored, wanted in _pairs(ranks, original, config, algo):
            error = relative_error(directory, name, stored, wanted, algo)
            if error >= worst:
                worst, where = error, name
    except (KeyError, ValueError) as error:  # an absent tensor, or shapes that do not fit
        raise CheckpointError(
            f"the export to {directory.name} is incomplete: {type(error).__name__}: {error}",
            "read the worker's log",
        ) from None
    left_out = list(original)
    if left_out:
        raise CheckpointError(
            f"the export to {directory.name} leaves out tensors of the source: {', '.join(left_out[:4])}"
            + (f" and {len(left_out) - 4} more" if len(left_out) > 4 else ""),
            "use a checkpoint of Llama, Mistral, Qwen2 or Qwen3 without additional tensors",
        )
    scales = [
        float(tensor.to_float32().max())
        for rank in ranks
        for name, tensor in rank.items()
        if name.endswith("_cache_scaling_factor")
    ]
    return Measured(worst, where, max(scales) if scales else None)


def relative_error(
    directory: Path, name: str, stored: Float32Array, wanted: Float32Array, algo: str | None
) -> float:
    """Return the relative error (Frobenius norm) of a tensor.

    Raises:
        CheckpointError: It is more than rounding explains.
    """
    error = float(np.linalg.norm(stored - wanted)) / max(float(np.linalg.norm(wanted)), 1e-30)
    if not error <= LARGEST_ERRORS[algo]:  # NaN too
        raise CheckpointError(
            f"{name} of {directory.name} differs from the source by a relative error of {error:.4f}, above "
            f"{LARGEST_ERRORS[algo]} for {algo or 'floating point'}",
            "check the source's weights for outliers, or choose another quantization",
        )
    return error


def _layers(
    ranks: Sequence[Mapping[str, Tensor]], config: Mapping[str, Any]
) -> Iterator[tuple[int, str, Sequence[Mapping[str, Tensor]]]]:
    """Yield each layer's number, the prefix of its tensors in a rank, and the ranks that hold it."""
    tp_size, pp_size = config["mapping"]["tp_size"], config["mapping"]["pp_size"]
    layers_of_stage = config["num_hidden_layers"] // pp_size
    for layer in range(config["num_hidden_layers"]):
        stage, index = divmod(layer, layers_of_stage)
        yield layer, f"transformer.layers.{index}.", ranks[stage * tp_size : (stage + 1) * tp_size]


def _widths(config: Mapping[str, Any]) -> tuple[int, int]:
    """Return the number of features of all queries, and of all keys."""
    size = config["head_size"]
    return config["num_attention_heads"] * size, config["num_key_value_heads"] * size


def _floating_pairs(
    ranks: Sequence[Mapping[str, Tensor]], original: dict[str, Tensor], config: Mapping[str, Any]
) -> Iterator[tuple[str, Float32Array, Float32Array]]:
    """Yield what is never quantized, as ``_pairs`` does: tables without padding, norms and biases."""
    tp_size = config["mapping"]["tp_size"]
    table = original.pop("model.embed_tokens.weight")
    tables = {
        EMBEDDING: (ranks[:tp_size], table),
        LM_HEAD: (ranks[-tp_size:], original.pop("lm_head.weight", table)),
    }
    for name, (holders, tensor) in tables.items():
        stored, wanted = np.concatenate([rank[name].to_float32() for rank in holders]), tensor.to_float32()
        yield name, stored[: len(wanted)], wanted
    norms = [("model.norm", FINAL_NORM, ranks[-tp_size:])]
    of_a_layer = {**_NORMS, **(_HEAD_NORMS if config.get("qwen_type") == "qwen3" else {})}
    for layer, prefix, holders in _layers(ranks, config):
        for name, source in of_a_layer.items():
            norms.append((f"model.layers.{layer}.{source}", f"{prefix}{name}.weight", holders))
        if config.get("attn_bias"):
            parts = [rank[f"{prefix}attention.qkv.bias"].to_float32() for rank in holders]
            wanted = _taken(original, layer, "attention.qkv", "bias")
            yield f"layer {layer} attention.qkv.bias", join_qkv(parts, _widths(config)), wanted
    for source, name, holders in norms:
        wanted = original.pop(f"{source}.weight").to_float32()
        for rank in holders:
            yield name, rank[name].to_float32(), wanted


def _taken(original: dict[str, Tensor], layer: int, name: str, kind: str) -> Float32Array:
    """Take the parts of a projection out of the source's tensors, and join them by output."""
    parts = [original.pop(f"model.layers.{layer}.{part}.{kind}") for part in _PARTS[name]]
    return np.concatenate([part.to_float32() for part in parts])


def _pairs(
    ranks: Sequence[Mapping[str, Tensor]],
    original: dict[str, Tensor],
    config: Mapping[str, Any],
    algo: str | None,
) -> Iterator[tuple[str, Float32Array, Float32Array]]:
    """Yield name, exported values and original values of each projection, both after smoothing.

    Each tensor is taken out of ``original``, so that what remains there was not exported. Smoothing scales
    the weights before they are rounded, so the rounding error is relative to the smoothed weights.
    """
    for layer, prefix, holders in _layers(ranks, config):
        for name in LINEARS:
            linears = [linear_of(_under(rank, f"{prefix}{name}."), algo) for rank in holders]
            parts = [linear.stored_values() for linear in linears]
            if name == "attention.qkv":
                stored = join_qkv(parts, _widths(config))
            else:
                stored = np.concatenate(parts, axis=1 if name in _SPLIT_BY_INPUT else 0)
            wanted = _taken(original, layer, name, "weight")
            prequant = _prequant(name, linears)
            yield f"layer {layer} {name}", stored, wanted if prequant is None else wanted / prequant


def _under(rank: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): rank[name] for name in rank if name.startswith(prefix)}


def _prequant(name: str, linears: Sequence[Linear]) -> Float32Array | None:
    """Return the factors of the input, joined over all ranks."""
    factors = [linear.prequant for linear in linears if linear.prequant is not None]
    if not factors:
        return None
    return np.concatenate(factors) if name in _SPLIT_BY_INPUT else factors[0]


def join_qkv(parts: Sequence[AnyArray], widths: Sequence[int]) -> AnyArray:
    """Join the queries, keys and values of several ranks.

    Args:
        parts: One array per rank, [(queries + 2 * keys) / ranks, ...].
        widths: Number of features of all queries, and of all keys.
    """
    borders = np.cumsum([widths[0], widths[1]]) // len(parts)
    split = [np.split(part, borders) for part in parts]
    return np.concatenate([piece[kind] for kind in range(3) for piece in split])
