"""Inspect the checkpoint that is to be quantized: its format, its files, and whether it is supported.

A Hugging Face checkpoint contains ``config.json``, ``tokenizer.json`` and safetensors files. A TensorRT-LLM
checkpoint contains ``config.json`` with the key ``architecture``, and ``rank*.safetensors``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build.checkpoints.settings import read_json
from build.checkpoints.tensor_file import Tensor, read_tensors
from build.checkpoints.tokenizer_file import read_tokenizer
from build.hugging_face.head import is_head
from build.hugging_face.weights import weight_files
from pipelines.errors import CheckpointError

DECODER_TYPES: Mapping[str, str] = {"llama": "llama", "mistral": "llama", "qwen2": "qwen", "qwen3": "qwen"}
"""``model_type`` of Hugging Face -> name of the model family in ModelOpt's export."""

_COMPUTED = ".rotary_emb.inv_freq"  # older checkpoints store the rotary frequencies
_TEXTS = (".json", ".jinja", ".txt", ".model")
_NOT_TEXTS = ("config.json", "model.safetensors.index.json", "manifest.json")
_ROTARY_TYPES = ("default", "llama3", "linear")


@dataclass(frozen=True)
class CheckpointSource:
    """A checkpoint on disk.

    Attributes:
        directory: Its directory.
        is_hugging_face: Whether its format is Hugging Face's; otherwise it is TensorRT-LLM's.
        config: Content of ``config.json``.
        weight_files: The safetensors files, sorted by name.
    """

    directory: Path
    is_hugging_face: bool
    config: Mapping[str, Any]
    weight_files: tuple[Path, ...]

    @property
    def files(self) -> tuple[Path, ...]:
        """Return all files that define the network and its tokens."""
        return (self.directory / "config.json", self.directory / "tokenizer.json", *self.weight_files)

    @property
    def texts(self) -> tuple[Path, ...]:
        """Return the files of tokenizer, chat template and generation settings."""
        found = sorted(path for path in self.directory.iterdir() if path.suffix in _TEXTS)
        return tuple(path for path in found if path.name not in _NOT_TEXTS)

    @property
    def quant_algo(self) -> str | None:
        """Return the quantization of a TensorRT-LLM checkpoint; None if it has none."""
        quantization = self.config.get("quantization") or {}
        algo: str | None = quantization.get("quant_algo")
        return algo

    @property
    def mapping(self) -> tuple[int, int]:
        """Return tensor and pipeline parallel size of a TensorRT-LLM checkpoint."""
        mapping = self.config.get("mapping") or {}
        return mapping.get("tp_size", 1), mapping.get("pp_size", 1)


def read_checkpoint_source(directory: Path) -> CheckpointSource:
    """Inspect a checkpoint without reading its weights.

    Raises:
        CheckpointError: There is no checkpoint, or a file is missing or invalid.
    """
    config = read_json(directory / "config.json")
    is_hugging_face = "architecture" not in config
    if is_hugging_face and not {"model_type", "architectures"} & set(config):
        raise CheckpointError(
            f"{directory / 'config.json'} has no known format: keys {', '.join(sorted(config)[:6])}",
            "set a checkpoint's directory in the recipe, with architecture (TensorRT-LLM), or model_type and "
            "architectures (Hugging Face)",
        )
    ranks = () if is_hugging_face else tuple(sorted(directory.glob("rank*.safetensors")))
    if not is_hugging_face and not ranks:
        raise CheckpointError(
            f"{directory} contains no weights, rank*.safetensors", "export the checkpoint again"
        )
    if not (is_head(config) or (directory / "tokenizer.json").is_file()):  # a head has its target's
        read_tokenizer(directory / "tokenizer.json")  # raises: it knows the other files of a tokenizer
    return CheckpointSource(directory, is_hugging_face, config, ranks or weight_files(directory))


def tensors_of(source: CheckpointSource) -> dict[str, Tensor]:
    """Map the tensors of a checkpoint into memory, by name, without those that ``config.json`` defines."""
    found = {name: tensor for path in source.weight_files for name, tensor in read_tensors(path).items()}
    return {name: tensor for name, tensor in found.items() if not name.endswith(_COMPUTED)}


def check_can_be_quantized(source: CheckpointSource) -> None:
    """Check, before any weight is read, that ModelOpt exports this network correctly.

    Raises:
        CheckpointError: The model family, one of its options or its format is not supported; the message
            names the key.
    """
    if not source.is_hugging_face:
        if source.quant_algo is not None:
            remedy = "set quantization: checkpoint in the recipe, or use the unquantized checkpoint"
            raise _refuse(source, f"it is quantized already, quant_algo={source.quant_algo}", remedy)
        return
    config = source.config
    model_type = config.get("model_type")
    if model_type not in DECODER_TYPES:
        raise _refuse(source, f"model_type={model_type}; supported: {', '.join(DECODER_TYPES)}")
    if config.get("quantization_config") is not None:
        what = "quantization_config is set, and weights must be floating point"
        raise _refuse(source, what, "use the original model")
    for key in ("attention_bias", "mlp_bias"):
        if config.get(key):
            raise _refuse(source, f"{key}=true, and {model_type} must not have biases")
    window, length = _attention_window(config), config.get("max_position_embeddings", 0)
    if window is not None and window < length:
        what = f"the format has no windows, and sliding_window={window} of {length} positions"
        raise _refuse(source, what, "use a model that attends to its whole context")
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in _ROTARY_TYPES:
        raise _refuse(source, f"rotary scaling of type {kind}; supported: {', '.join(_ROTARY_TYPES)}")


def _attention_window(config: Mapping[str, Any]) -> int | None:
    """Return the size of the attention window, None for the whole context; defaults are transformers'."""
    is_mistral = config["model_type"] == "mistral"
    if not config.get("use_sliding_window", is_mistral):
        return None
    window: int | None = config.get("sliding_window", 4096 if is_mistral else None)
    return window


def _refuse(source: CheckpointSource, what: str, remedy: str = "use another model") -> CheckpointError:
    return CheckpointError(f"{source.directory} cannot be quantized: {what}", remedy)
