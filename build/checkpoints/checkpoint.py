"""Read and write TensorRT-LLM checkpoints, as ModelOpt exports them, without torch.

A checkpoint is a directory with ``config.json``, ``rank0.safetensors`` and ``tokenizer.json``. Both runtimes
compile engines from it. This module reads Llama, Mistral and Qwen2 (Llama with biases for q, k and v) with a
single rank. It rejects settings that it does not know: with a guessed setting, a network produces fluent but
wrong text.

Tensor names are TensorRT-LLM's. Two of them mislead: ``mlp.fc`` is the gate projection (followed by SiLU) and
``mlp.gate`` is the up projection. ``attention.qkv`` stacks q, k and v along the output dimension.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build.checkpoints.checkpoint_config import parse_config
from build.checkpoints.settings import read_json
from build.checkpoints.stored_linear import form_of, read_linear
from build.checkpoints.tensor_file import FLOATS, Tensor, read_tensors, write_tensors
from build.networks.linear import Linear
from build.networks.network import Layer, Network, NetworkConfig
from pipelines.atomic_file import write_whole
from pipelines.errors import CheckpointError

__all__ = ["LINEARS", "Checkpoint", "Tensor", "read_checkpoint", "write_checkpoint"]

EMBEDDING = "transformer.vocab_embedding.weight"
FINAL_NORM = "transformer.ln_f.weight"
LM_HEAD = "lm_head.weight"
NORMS = ("input_layernorm", "post_layernorm")
LINEARS = ("attention.qkv", "attention.dense", "mlp.fc", "mlp.gate", "mlp.proj")

# The KV cache of the embedded runtime is floating point, so scales for a quantized cache are ignored.
_UNUSED_SUFFIXES = tuple(f".{kind}_cache_scaling_factor" for kind in ("k", "v", "kv"))

_OTHER_EXPORT = "export the checkpoint again; config.json and weights may come from different exports"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose tensors match the names, shapes and types in its configuration.

    Attributes:
        directory: Directory that it was read from.
        config: Its ``config.json``.
        tensors: Tensors of ``rank0.safetensors`` by name, memory-mapped.
    """

    directory: Path
    config: NetworkConfig
    tensors: Mapping[str, Tensor]

    def layer_tensor(self, layer: int, name: str) -> Tensor:
        """Return one tensor of a layer, such as ``mlp.fc.weight``."""
        return self.tensors[f"transformer.layers.{layer}.{name}"]


def linear_shape(config: NetworkConfig, name: str) -> tuple[int, int]:
    """Return the output and input features of one of ``LINEARS``."""
    hidden, heads = config.hidden_size, config.num_attention_heads * config.head_size
    return {
        "attention.qkv": (heads + 2 * config.num_key_value_heads * config.head_size, hidden),
        "attention.dense": (hidden, heads),
        "mlp.fc": (config.intermediate_size, hidden),
        "mlp.gate": (config.intermediate_size, hidden),
        "mlp.proj": (hidden, config.intermediate_size),
    }[name]


def _expected(
    config: NetworkConfig, tensors: Mapping[str, Tensor]
) -> dict[str, tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]]:
    """Return the allowed types and shapes of every required tensor."""
    hidden = config.hidden_size
    table = (config.vocab_size, hidden)
    expected: dict[str, tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]] = {
        EMBEDDING: (FLOATS, (table,)),
        FINAL_NORM: (FLOATS, ((hidden,),)),
    }
    if not config.share_embedding_table:
        expected[LM_HEAD] = (FLOATS, (table,))
    for layer in range(config.num_hidden_layers):
        prefix = f"transformer.layers.{layer}."
        for norm in NORMS:
            expected[f"{prefix}{norm}.weight"] = (FLOATS, ((hidden,),))
        if "qkv" in config.biases:
            expected[f"{prefix}attention.qkv.bias"] = (FLOATS, ((linear_shape(config, "attention.qkv")[0],),))
        for name in LINEARS:
            shape = linear_shape(config, name)
            stored = tensors.get(f"{prefix}{name}.weight")
            form = form_of(config.quant_algo, stored.dtype if stored else None)
            expected[f"{prefix}{name}.weight"] = (form.weight_dtypes, (form.weight_shape(*shape),))
            for factor, shapes in form.factors.items():
                expected[f"{prefix}{name}.{factor}"] = (FLOATS, shapes(*shape, config.group_size))
    return expected


def _check_tensors(path: Path, config: NetworkConfig, tensors: Mapping[str, Tensor]) -> None:
    expected = _expected(config, tensors)
    for name, (dtypes, shapes) in expected.items():
        tensor = tensors.get(name)
        if tensor is None:
            raise CheckpointError(
                f"{path} lacks {name}, one of {len(expected)} tensors that config.json calls for",
                _OTHER_EXPORT,
            )
        if tensor.dtype not in dtypes or tensor.shape not in shapes:
            raise CheckpointError(
                f"{path}: {name} is {tensor.dtype} {list(tensor.shape)}, and config.json calls for "
                f"{' or '.join(dtypes)} {' or '.join(str(list(shape)) for shape in shapes)}",
                _OTHER_EXPORT,
            )
    extra = [name for name in tensors if name not in expected and not name.endswith(_UNUSED_SUFFIXES)]
    # A checkpoint with tied embeddings may still contain the output head; the copy is ignored.
    extra = [name for name in extra if not (name == LM_HEAD and config.share_embedding_table)]
    if extra:
        raise CheckpointError(
            f"{path} contains tensors that Llama, Mistral and Qwen2 do not have: "
            f"{', '.join(sorted(extra)[:4])}" + (f" and {len(extra) - 4} more" if len(extra) > 4 else ""),
            "use another model, or export the checkpoint again",
        )


def read_checkpoint(directory: Path) -> Checkpoint:
    """Map a checkpoint into memory and check its configuration and all its tensors.

    Args:
        directory: Directory with ``config.json`` and ``rank0.safetensors``.

    Returns:
        The checkpoint; weights are not copied.

    Raises:
        CheckpointError: A file is missing, damaged or not supported; the message names the file and the key
            or tensor.
    """
    config_path = directory / "config.json"
    config = parse_config(read_json(config_path), config_path)
    weights_path = directory / "rank0.safetensors"
    tensors = read_tensors(weights_path)
    _check_tensors(weights_path, config, tensors)
    return Checkpoint(directory, config, tensors)


def write_checkpoint(directory: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write ``config.json`` and ``rank0.safetensors``, each of them atomically.

    The weights are written first, so that a directory with a config always has its weights.

    Args:
        directory: Created if needed; files of the same names are replaced.
        config: Content of ``config.json``, with TensorRT-LLM's keys.
        tensors: Tensors by TensorRT-LLM's names.
    """
    directory.mkdir(parents=True, exist_ok=True)
    write_tensors(directory / "rank0.safetensors", tensors)
    write_whole(directory / "config.json", json.dumps(dict(config), indent=2) + "\n")


def network_from_checkpoint(checkpoint: Checkpoint) -> Network:
    """Return the network as it is in a checkpoint, quantized or not."""
    config = checkpoint.config

    def layer(index: int) -> Layer:
        def linear(name: str) -> Linear:
            return read_linear(checkpoint.tensors, f"transformer.layers.{index}.{name}", config.quant_algo)

        qkv, dense, fc, gate, proj = (linear(name) for name in LINEARS)
        return Layer(
            (qkv,),
            dense,
            fc,
            gate,
            proj,
            input_norm=checkpoint.layer_tensor(index, "input_layernorm.weight").to_float32(),
            post_norm=checkpoint.layer_tensor(index, "post_layernorm.weight").to_float32(),
        )

    embedding = checkpoint.tensors[EMBEDDING]
    head = embedding if config.share_embedding_table else checkpoint.tensors[LM_HEAD]
    return Network(config, embedding, checkpoint.tensors[FINAL_NORM].to_float32(), Linear(head), layer)
