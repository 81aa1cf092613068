"""Reads and writes checkpoints in the format of TensorRT-LLM, as ModelOpt exports them, without torch.

A checkpoint is a directory with ``config.json`` and ``rank0.safetensors`` (tensor names below);
``tokenizer.json`` lies beside them. Both runtimes compile from it. Llama, Mistral and Qwen2 (Llama with
biases of q, k and v) in one piece are read here: what this module does not understand it refuses, because
a network computed with a guessed setting answers fluently and wrong.

Names are TensorRT-LLM's, and two of them mislead: ``mlp.fc`` is the gate projection (the one under
SiLU) and ``mlp.gate`` the up projection. ``attention.qkv`` is q, k and v stacked on the output side.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build.checkpoint_config import CheckpointConfig, parse_config
from build.stored_linear import FLOATS, form_of
from build.tensor_file import Tensor, read_tensors, write_tensors
from build.whole import write_whole
from pipelines.errors import CheckpointError

__all__ = ["LINEARS", "Checkpoint", "CheckpointConfig", "Tensor", "read_checkpoint", "write_checkpoint"]

EMBEDDING = "transformer.vocab_embedding.weight"
FINAL_NORM = "transformer.ln_f.weight"
LM_HEAD = "lm_head.weight"
NORMS = ("input_layernorm", "post_layernorm")
LINEARS = ("attention.qkv", "attention.dense", "mlp.fc", "mlp.gate", "mlp.proj")

# The KV cache of the embedded runtime is floating point: its scales may be present and are not used.
_UNUSED_SUFFIXES = tuple(f".{kind}_cache_scaling_factor" for kind in ("k", "v", "kv"))


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose tensors have the names, shapes and types that its configuration calls for.

    Attributes:
        directory: Where it was read from.
        config: Its ``config.json``.
        tensors: Views of ``rank0.safetensors`` by name.
    """

    directory: Path
    config: CheckpointConfig
    tensors: Mapping[str, Tensor]

    def layer_tensor(self, layer: int, name: str) -> Tensor:
        """Tensor ``name``, such as ``mlp.fc.weight``, of one layer."""
        return self.tensors[f"transformer.layers.{layer}.{name}"]


def linear_shape(config: CheckpointConfig, name: str) -> tuple[int, int]:
    """Output and input features of one of ``LINEARS``."""
    hidden, heads = config.hidden_size, config.num_attention_heads * config.head_size
    return {
        "attention.qkv": (heads + 2 * config.num_key_value_heads * config.head_size, hidden),
        "attention.dense": (hidden, heads),
        "mlp.fc": (config.intermediate_size, hidden),
        "mlp.gate": (config.intermediate_size, hidden),
        "mlp.proj": (hidden, config.intermediate_size),
    }[name]


def _expected(
    config: CheckpointConfig, tensors: Mapping[str, Tensor]
) -> dict[str, tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]]:
    """Allowed types and shapes of every tensor that must be there."""
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
        if config.has_qkv_bias:
            expected[f"{prefix}attention.qkv.bias"] = (FLOATS, ((linear_shape(config, "attention.qkv")[0],),))
        for name in LINEARS:
            shape = linear_shape(config, name)
            stored = tensors.get(f"{prefix}{name}.weight")
            form = form_of(config.quant_algo, stored.dtype if stored else None)
            expected[f"{prefix}{name}.weight"] = (form.weight_dtypes, (form.weight_shape(*shape),))
            for factor, shapes in form.factors.items():
                expected[f"{prefix}{name}.{factor}"] = (FLOATS, shapes(*shape, config.group_size))
    return expected


def _check_tensors(path: Path, config: CheckpointConfig, tensors: Mapping[str, Tensor]) -> None:
    expected = _expected(config, tensors)
    for name, (dtypes, shapes) in expected.items():
        tensor = tensors.get(name)
        if tensor is None:
            raise CheckpointError(
                f"{path} lacks a tensor",
                values=f"missing {name}",
                limit=f"config.json promises {len(expected)} tensors",
                remedy="export the checkpoint again; config.json and weights may come from different exports",
            )
        if tensor.dtype not in dtypes or tensor.shape not in shapes:
            raise CheckpointError(
                f"{path}: a tensor does not fit config.json",
                values=f"{name} is {tensor.dtype} {list(tensor.shape)}",
                limit=f"{' or '.join(dtypes)}, shape {' or '.join(str(list(shape)) for shape in shapes)}",
                remedy="export the checkpoint again; config.json and weights may come from different exports",
            )
    extra = [name for name in tensors if name not in expected and not name.endswith(_UNUSED_SUFFIXES)]
    # A tied checkpoint may still carry the head; the table is used and the copy ignored.
    extra = [name for name in extra if not (name == LM_HEAD and config.share_embedding_table)]
    if extra:
        raise CheckpointError(
            f"{path} holds tensors that this architecture does not have",
            values=", ".join(sorted(extra)[:4]) + (f" and {len(extra) - 4} more" if len(extra) > 4 else ""),
            limit="Llama, Mistral or Qwen2, and the factors of the quantization in config.json",
            remedy="use another model, or export the checkpoint anew",
        )


def read_checkpoint(directory: Path) -> Checkpoint:
    """Map a checkpoint into memory and check it whole.

    Args:
        directory: Directory with ``config.json`` and ``rank0.safetensors``.

    Returns:
        The checkpoint; no weight has been copied yet.

    Raises:
        CheckpointError: A file is missing, damaged or of a form this project does not compute; the
            message names the file and the key or tensor.
    """
    config_path = directory / "config.json"
    if not config_path.is_file():
        raise CheckpointError(
            f"{config_path} does not exist",
            limit="a checkpoint is config.json and rank0.safetensors",
            remedy="check the recipe's checkpoint path; the demo pair lies in engines/demo_pair",
        )
    try:
        raw = json.loads(config_path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(
            f"{config_path} is not JSON", values=str(error), remedy="export the checkpoint again"
        ) from None
    config = parse_config(raw, config_path)
    weights_path = directory / "rank0.safetensors"
    tensors = read_tensors(weights_path)
    _check_tensors(weights_path, config, tensors)
    return Checkpoint(directory, config, tensors)


def write_checkpoint(directory: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write ``config.json`` and ``rank0.safetensors``, each moved into place whole.

    The weights go first, so that a directory with a config always has weights that belong to it.

    Args:
        directory: Made if absent; files of the same names are replaced.
        config: Content of ``config.json``, in TensorRT-LLM's keys.
        tensors: Tensors by TensorRT-LLM's names.
    """
    directory.mkdir(parents=True, exist_ok=True)
    write_tensors(directory / "rank0.safetensors", tensors)
    write_whole(directory / "config.json", json.dumps(dict(config), indent=2) + "\n")
