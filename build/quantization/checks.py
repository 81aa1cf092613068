"""Reads back what ModelOpt wrote and compares it with the source, with numpy alone.

Every projection is multiplied out over all ranks and put beside the source's; tables and norms must be the
source's own. Tensors of a rank are named as those of a whole checkpoint; layers are counted within the rank's
pipeline stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from build.checkpoint import EMBEDDING, FINAL_NORM, LINEARS, LM_HEAD
from build.linear import Linear
from build.quantization.source import CheckpointSource
from build.stored_linear import read_linear
from build.tensor_file import AnyArray, Float32Array, Tensor, read_tensors
from pipelines.errors import CheckpointError

LARGEST_ERRORS: Mapping[str | None, float] = {
    None: 0.002,
    "W8A16": 0.002,
    "FP8": 0.04,
    "W8A8_SQ_PER_CHANNEL": 0.05,
    "W4A16_AWQ": 0.15,
    "W4A8_AWQ": 0.15,
}
"""By ``quant_algo``: largest relative error of a projection, as Frobenius norms, that is taken for rounding.

Weights without an algorithm, and those of W8A16, are floating point: only float32 loses something.
SmoothQuant moves outliers of the inputs into columns of the weights, whose rows are then rounded more
coarsely: 0.8 % on random weights, 2.2 % on the demonstration pair's draft with a short text.
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
_SPLIT_BY_INPUT = ("attention.dense", "mlp.proj")


@dataclass(frozen=True)
class Measured:
    """What was found.

    Attributes:
        largest_error: Of all projections, relative.
        projection: Where.
        largest_kv_scale: Of the FP8 KV cache; None without one.
    """

    largest_error: float
    projection: str
    largest_kv_scale: float | None


def check_finite(source: CheckpointSource) -> None:
    """Refuse weights that are not numbers: calibration would spread them over every scale.

    Raises:
        CheckpointError: Names the tensor.
    """
    for path in source.weight_files:
        for name, tensor in read_tensors(path).items():
            if not _is_finite(tensor):
                raise CheckpointError(
                    f"{path} holds a weight that is not a number",
                    values=name,
                    limit="all weights must be finite",
                    remedy="copy or train the model again",
                )


def _is_finite(tensor: Tensor) -> bool:
    if tensor.dtype == "BF16":
        return not bool(((tensor.data & 0x7F80) == 0x7F80).any())
    return tensor.data.dtype.kind != "f" or bool(np.isfinite(tensor.data).all())


def compare(directory: Path, config: Mapping[str, Any], source: CheckpointSource) -> Measured:
    """Compare an exported checkpoint with the Hugging Face directory it was made from.

    Args:
        directory: Holds ``rank*.safetensors``.
        config: Its ``config.json``.
        source: In Hugging Face's form.

    Raises:
        CheckpointError: A file or tensor is missing, or further from the source's than rounding takes it.
    """
    ranks = [
        read_tensors(directory / f"rank{rank}.safetensors") for rank in range(config["mapping"]["world_size"])
    ]
    original = {name: tensor for path in source.weight_files for name, tensor in read_tensors(path).items()}
    algo = config["quantization"].get("quant_algo")
    worst, where = 0.0, ""
    try:
        for name, stored, wanted in _floating_pairs(ranks, original, config):
            _relative_error(directory, name, stored, wanted, None)
        for name, stored, wanted in _pairs(ranks, original, config, algo):
            error = _relative_error(directory, name, stored, wanted, algo)
            if error >= worst:
                worst, where = error, name
    except (KeyError, ValueError) as error:  # an absent tensor, or shapes that do not fit
        raise CheckpointError(
            f"{directory.name} was not exported whole",
            values=f"{type(error).__name__}: {error}",
            limit="every tensor of every layer, in every rank",
            remedy="read the worker's log",
        ) from None
    scales = [
        float(tensor.to_float32().max())
        for rank in ranks
        for name, tensor in rank.items()
        if name.endswith("_cache_scaling_factor")
    ]
    return Measured(worst, where, max(scales) if scales else None)


def _relative_error(
    directory: Path, name: str, stored: Float32Array, wanted: Float32Array, algo: str | None
) -> float:
    error = float(np.linalg.norm(stored - wanted)) / max(float(np.linalg.norm(wanted)), 1e-30)
    if not error <= LARGEST_ERRORS[algo]:  # NaN too
        raise CheckpointError(
            f"{name} of {directory.name} is not the source's",
            values=f"relative error {error:.4f}",
            limit=f"{LARGEST_ERRORS[algo]} for {algo or 'floating point'}",
            remedy="check the source's weights for outliers, or choose another quantization",
        )
    return error


def _floating_pairs(
    ranks: Sequence[Mapping[str, Tensor]], original: Mapping[str, Tensor], config: Mapping[str, Any]
) -> Iterator[tuple[str, Float32Array, Float32Array]]:
    """As ``_pairs``, of what no quantization touches: tables, less the rows that padded them, and norms."""
    tp_size, pp_size = config["mapping"]["tp_size"], config["mapping"]["pp_size"]
    table = original["model.embed_tokens.weight"]
    tables = {
        EMBEDDING: (ranks[:tp_size], table),
        LM_HEAD: (ranks[-tp_size:], original.get("lm_head.weight", table)),
    }
    for name, (holders, tensor) in tables.items():
        stored, wanted = np.concatenate([rank[name].to_float32() for rank in holders]), tensor.to_float32()
        yield name, stored[: len(wanted)], wanted
    norms = {(pp_size - 1, FINAL_NORM): "model.norm"}
    layers_of_stage = config["num_hidden_layers"] // pp_size
    for layer in range(config["num_hidden_layers"]):
        stage, index = divmod(layer, layers_of_stage)
        for name, source in _NORMS.items():
            norms[stage, f"transformer.layers.{index}.{name}.weight"] = f"model.layers.{layer}.{source}"
    for (stage, name), source in norms.items():
        for rank in ranks[stage * tp_size : (stage + 1) * tp_size]:
            yield name, rank[name].to_float32(), original[f"{source}.weight"].to_float32()


def _pairs(
    ranks: Sequence[Mapping[str, Tensor]],
    original: Mapping[str, Tensor],
    config: Mapping[str, Any],
    algo: str | None,
) -> Iterator[tuple[str, Float32Array, Float32Array]]:
    """Name, exported and original values of each projection, both as they are after smoothing.

    Smoothing makes weights of rare inputs small, and those of outliers large: rounding is a share of what
    is rounded, not of what it was.
    """
    tp_size, pp_size = config["mapping"]["tp_size"], config["mapping"]["pp_size"]
    layers_of_stage = config["num_hidden_layers"] // pp_size
    size = config["head_size"]
    widths = [config["num_attention_heads"] * size, config["num_key_value_heads"] * size]
    for layer in range(config["num_hidden_layers"]):
        stage = layer // layers_of_stage
        stage_ranks = ranks[stage * tp_size : (stage + 1) * tp_size]
        for name in LINEARS:
            prefix = f"transformer.layers.{layer % layers_of_stage}.{name}"
            linears = [read_linear(rank, prefix, algo) for rank in stage_ranks]
            parts = [linear.stored_values() for linear in linears]
            if name == "attention.qkv":
                stored = join_qkv(parts, widths)
            else:
                stored = np.concatenate(parts, axis=1 if name in _SPLIT_BY_INPUT else 0)
            wanted = np.concatenate(
                [original[f"model.layers.{layer}.{part}.weight"].to_float32() for part in _PARTS[name]]
            )
            prequant = _prequant(name, linears)
            yield f"layer {layer} {name}", stored, wanted if prequant is None else wanted / prequant


def _prequant(name: str, linears: Sequence[Linear]) -> Float32Array | None:
    """The factor of the input, of all ranks together."""
    factors = [linear.prequant for linear in linears if linear.prequant is not None]
    if not factors:
        return None
    return np.concatenate(factors) if name in _SPLIT_BY_INPUT else factors[0]


def join_qkv(parts: Sequence[AnyArray], widths: Sequence[int]) -> AnyArray:
    """Queries, keys and values of ranks, each rank's one after another, put together.

    Args:
        parts: Per rank, [(queries + 2 * keys) / ranks, ...].
        widths: Features of all queries, and of all keys.
    """
    borders = np.cumsum([widths[0], widths[1]]) // len(parts)
    split = [np.split(part, borders) for part in parts]
    return np.concatenate([piece[kind] for kind in range(3) for piece in split])
