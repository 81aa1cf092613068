"""Translate settings and tensors of a TensorRT-LLM checkpoint into those of transformers.

A checkpoint is a directory with ``config.json``, ``rank0.safetensors`` and ``tokenizer.json``, as ModelOpt
exports it. Llama, Mistral and Qwen2 (Llama with biases for q, k and v) of a single rank are read. Two of its
names mislead: ``mlp.fc`` is the gate projection (followed by SiLU) and ``mlp.gate`` is the up projection.
``attention.qkv`` stacks q, k and v along the output dimension.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from build.checkpoints.settings import Settings

WEIGHTS = "rank0.safetensors"
EMBEDDING = "transformer.vocab_embedding.weight"
FINAL_NORM = "transformer.ln_f.weight"
LM_HEAD = "lm_head.weight"
LINEARS = {
    "attention.qkv": "self_attn.qkv_proj",
    "attention.dense": "self_attn.o_proj",
    "mlp.fc": "mlp.gate_proj",
    "mlp.gate": "mlp.up_proj",
    "mlp.proj": "mlp.down_proj",
}
"""Projections of a layer, and their names in transformers."""

_PARTS = {**LINEARS, "input_layernorm": "input_layernorm", "post_layernorm": "post_attention_layernorm"}
_WHOLE = {EMBEDDING: "model.embed_tokens.weight", FINAL_NORM: "model.norm.weight"}
_OF_LAYER = re.compile(r"transformer\.layers\.(?P<index>\d+)\.(?P<part>\w+(\.\w+)?)\.(?P<kind>\w+)")
_FAMILIES = {"LlamaForCausalLM": "llama", "MistralForCausalLM": "mistral", "Qwen2ForCausalLM": "qwen2"}


def translated_name(name: str) -> str:
    """Return the name of a tensor in transformers; one that it does not have stays as it is."""
    match = _OF_LAYER.fullmatch(name)
    if match is None or match["part"] not in _PARTS:
        return _WHOLE.get(name, name)
    return f"model.layers.{match['index']}.{_PARTS[match['part']]}.{match['kind']}"


def translated_config(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the settings as ``config.json`` of transformers has them.

    Args:
        raw: The parsed JSON.
        path: The file, for error messages.

    Raises:
        CheckpointError: A key is missing, has the wrong type, or has a value that is not computed here.
    """
    settings = Settings(raw, path)
    architecture = settings.one_of("architecture", *_FAMILIES)
    settings.one_of("hidden_act", "silu", "swiglu")
    settings.one_of("attn_bias", *((True,) if architecture == "Qwen2ForCausalLM" else (False, None)))
    settings.one_of("dtype", "bfloat16", "float16", "float32")
    settings.refuse_unless("position_embedding_type", "rope_gpt_neox")
    for key in ("rotary_pct", "partial_rotary_factor"):
        settings.refuse_unless(key, 1.0)
    for key in ("attention_bias", "mlp_bias", "bias", "lm_head_bias", "sliding_window", "residual_mlp"):
        settings.refuse_unless(key, False)
    settings.refuse_unless("qk_layernorm", False)
    mapping = settings.part("mapping") or Settings({}, path)
    for key in ("world_size", "tp_size", "pp_size"):
        if mapping.get(key, 1) != 1:
            raise settings.fail(
                f"mapping.{key}={mapping.get(key)!r:.80}, and only checkpoints with a single rank are read",
                "export with tensor and pipeline parallelism of 1",
            )
    if raw.get("rotary_base") is None:
        raise settings.fail(
            "no rotary_base, for which a loader would silently assume 10000",
            "set rope_theta and rope_scaling in model.config before the export (transformers 5 drops them)",
        )
    scaling = settings.part("rotary_scaling") or Settings({}, path)
    for key in ("rope_type", "type"):
        scaling.refuse_unless(key, "default", "linear", "llama3")
    return {
        **raw,
        "model_type": _FAMILIES[architecture],
        "architectures": [architecture],
        "hidden_act": "silu",
        "sliding_window": None,
        "head_dim": settings.get("head_size"),
        "rms_norm_eps": settings.number("norm_epsilon"),
        "rope_theta": settings.number("rotary_base"),
        "rope_scaling": scaling.values,
        "tie_word_embeddings": settings.flag("share_embedding_table"),
        "quantization_config": _quantization(settings),
    }


def _quantization(settings: Settings) -> dict[str, Any] | None:
    quantization = settings.part("quantization")
    if quantization is None or quantization.get("quant_algo") is None:
        return None
    excluded = quantization.items("exclude_modules", str)
    if any(not name.endswith("lm_head") for name in excluded):
        raise quantization.fail(f"exclude_modules={excluded!r:.80}, and only lm_head may be excluded")
    return {**quantization.values, "quant_method": "tensorrt_llm"}
