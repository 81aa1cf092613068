"""Read the sizes of a network from ``config.json``.

Three formats are supported: Hugging Face, TensorRT-LLM checkpoint and TensorRT-LLM engine. They hold the same
settings under different names. Weights are never read, so this is fast for any model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build.checkpoints.settings import Settings, read_json

# With these types of scaling, max_position_embeddings is already the extended length.
_NOT_MULTIPLIED = ("su", "longrope", "llama3", "default")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes and types of a network, for preflight, the memory plan and engine builds.

    Attributes:
        path: File that it was read from.
        is_hugging_face: Whether this is a Hugging Face checkpoint; otherwise it is TensorRT-LLM's.
        architecture: Class name, such as ``LlamaForCausalLM``.
        dtype: Type of the activations: ``bfloat16``, ``float16`` or ``float32``.
        logits_dtype: ``float32`` unless the file says otherwise.
        max_positions: Longest context, tokens, with rotary scaling applied as ``trtllm-build`` does.
        qwen_type: TensorRT-LLM's name for the generation of a Qwen network; None for other families and for
            Hugging Face checkpoints.
        quant_algo: TensorRT-LLM's name for the quantization of the weights; None for floating point.
        kv_cache_quant_algo: ``FP8``, ``INT8`` or None.
        tp_size: Tensor parallel size of a TensorRT-LLM checkpoint; 1 for Hugging Face.
        pp_size: Pipeline parallel size of a TensorRT-LLM checkpoint; 1 for Hugging Face.
        parallel_embedding: Whether ranks split the embedding table; otherwise each has all of it.
    """

    path: Path
    is_hugging_face: bool
    architecture: str
    dtype: str
    logits_dtype: str = "float32"
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    max_positions: int
    qwen_type: str | None = None
    quant_algo: str | None = None
    kv_cache_quant_algo: str | None = None
    tp_size: int = 1
    pp_size: int = 1
    parallel_embedding: bool

    @property
    def world_size(self) -> int:
        """Return the number of ranks, each of which has one file of weights."""
        return self.tp_size * self.pp_size


def read_model_config(directory: Path) -> ModelConfig:
    """Read the ``config.json`` of a Hugging Face or TensorRT-LLM checkpoint.

    Raises:
        CheckpointError: The file or a required key is missing.
    """
    path = directory / "config.json"
    raw = read_json(path)
    if (raw.get("quantization_config") or {}).get("quant_method") == "gguf":
        remedy = "use the checkpoint that the file was made from"
        raise Settings(raw, path).fail("a GGUF file, and TensorRT-LLM reads none", remedy)
    if raw.get("num_experts", raw.get("num_local_experts")):
        what = "a mixture of experts, and the memory of experts is not planned here"
        raise Settings(raw, path).fail(what, "serve it with the embedded runtime")
    if "architecture" in raw:
        return parse_tensorrt_llm(raw, path)
    if isinstance(raw.get("architectures"), list) and raw["architectures"]:
        return _parse_hugging_face(raw, path)
    keys = ", ".join(list(raw)[:6])
    raise Settings(raw, path).fail(f"neither architectures (Hugging Face) nor architecture among {keys}")


def parse_tensorrt_llm(raw: Mapping[str, Any], path: Path) -> ModelConfig:
    """Parse the configuration of a TensorRT-LLM checkpoint, or ``pretrained_config`` of an engine.

    Raises:
        CheckpointError: A required key is missing.
    """
    mapping, quantization = raw.get("mapping") or {}, raw.get("quantization") or {}
    sizes = _sizes(Settings(raw, path), raw.get("rotary_scaling"), head_size="head_size")
    return ModelConfig(
        path=path,
        is_hugging_face=False,
        architecture=str(raw.get("architecture")),
        dtype=str(raw.get("dtype")),
        logits_dtype=str(raw.get("logits_dtype", "float32")),
        qwen_type=raw.get("qwen_type"),
        quant_algo=quantization.get("quant_algo"),
        kv_cache_quant_algo=quantization.get("kv_cache_quant_algo"),
        tp_size=mapping.get("tp_size", 1),
        pp_size=mapping.get("pp_size", 1),
        parallel_embedding=bool(raw.get("use_parallel_embedding", False)),
        **sizes,
    )


def _parse_hugging_face(raw: Mapping[str, Any], path: Path) -> ModelConfig:
    # transformers 5 renamed rope_scaling to rope_parameters.
    sizes = _sizes(
        Settings(raw, path), raw.get("rope_scaling") or raw.get("rope_parameters"), head_size="head_dim"
    )
    return ModelConfig(
        path=path,
        is_hugging_face=True,
        architecture=str(raw["architectures"][0]),
        dtype=str(raw.get("dtype") or raw.get("torch_dtype") or "float32"),
        # As draftproof quantize exports it (ModelOpt, torch/export/tensorrt_llm_utils.py).
        parallel_embedding=True,
        **sizes,
    )


def _sizes(settings: Settings, rotary_scaling: Any, head_size: str) -> dict[str, Any]:
    heads, hidden = settings.integer("num_attention_heads"), settings.integer("hidden_size")
    kind = factor = None
    if isinstance(rotary_scaling, dict):
        kind = rotary_scaling.get("rope_type", rotary_scaling.get("type", "default"))
        factor = rotary_scaling.get("factor")
    multiplied = factor if kind is not None and kind not in _NOT_MULTIPLIED and factor else 1
    return {
        "num_layers": settings.integer("num_hidden_layers"),
        "num_heads": heads,
        "num_kv_heads": settings.integer("num_key_value_heads", heads),
        "head_size": settings.integer(head_size, hidden // heads),
        "hidden_size": hidden,
        "intermediate_size": settings.integer("intermediate_size"),
        "vocab_size": settings.integer("vocab_size"),
        "max_positions": int(settings.integer("max_position_embeddings") * multiplied),
    }
