"""Translate settings and tensors of a GGUF file into those of transformers.

Sources: llama.cpp, ``conversion/*.py`` (what the converter did to a checkpoint) and ``src/models/*.cpp``
(what is computed of it), and ``gguf-py/gguf/tensor_mapping.py`` (names). A setting that is not listed here is
refused: it may change what the network computes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from build.checkpoints.settings import Settings
from build.checkpoints.tensor_file import AnyArray, Float32Array, Tensor
from build.gguf.blocks import ENGINE_BITS, dequantized
from build.gguf.file import GgufFile, StoredTensor
from build.networks.network import Rotary, RotaryScaling
from build.networks.rotary import rotary_frequencies

_COMMON_SETTINGS = (
    *("block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size"),
    *("attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length"),
    *("attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.dimension_count", "rope.scaling.type"),
    *("rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.finetuned"),
    *("rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "rope.scaling.yarn_attn_factor"),
)
_ATTENTION = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
_MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_LAYER = {**_ATTENTION, **_MLP, "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_QUERY_KEY_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_OUTPUT_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_GEMMA_LAYER = {**_LAYER, **_OUTPUT_NORMS, "ffn_norm": "pre_feedforward_layernorm"}
_EMBEDDING, _HEAD = "token_embd.weight", "output.weight"
_WHOLE = {
    _EMBEDDING: "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    _HEAD: "lm_head.weight",
}
_FREQUENCY_DIVISORS = "rope_freqs.weight"
_LONG, _SHORT = "rope_factors_long.weight", "rope_factors_short.weight"


@dataclass(frozen=True)
class Architecture:
    """Says what an architecture of GGUF is in transformers.

    Attributes:
        model_type: Its name there (``hugging_face.families``).
        layer: Names of the tensors of a layer.
        has_rotary_pairs: Whether the rows of queries and keys were reordered, so that the two numbers that
            are rotated together lie side by side.
        norm_offset: What the converter added to the gains of norms.
        others: Names of settings that only this architecture has.
        further: Returns further settings of transformers.
        positions: Tensors of its position embedding.
    """

    model_type: str
    layer: Mapping[str, str] = field(default_factory=lambda: _LAYER)
    has_rotary_pairs: bool = False
    norm_offset: float = 0.0
    others: tuple[str, ...] = ()
    further: Callable[[GgufFile, Settings], Mapping[str, Any]] = lambda file, settings: {}
    positions: tuple[str, ...] = ()


def _gemma(settings: Settings, layers_of_27b: int) -> Mapping[str, Any]:
    """Return settings of Gemma; only the network of 27 billion weights scales queries by another number."""
    head = settings.integer("attention.key_length")
    if settings.integer("block_count") == layers_of_27b:
        head = settings.integer("embedding_length") // settings.integer("attention.head_count")
    return {
        "query_pre_attn_scalar": head,
        "sliding_window": settings.integer("attention.sliding_window"),
        "attn_logit_softcapping": settings.get("attn_logit_softcapping"),
        "final_logit_softcapping": settings.get("final_logit_softcapping"),
    }


def _gemma2(file: GgufFile, settings: Settings) -> Mapping[str, Any]:
    return _gemma(settings, layers_of_27b=46)


def _gemma3(file: GgufFile, settings: Settings) -> Mapping[str, Any]:
    return {**_gemma(settings, layers_of_27b=62), "rope_local_base_freq": 10000.0}


def _phi3(file: GgufFile, settings: Settings) -> Mapping[str, Any]:
    head = settings.integer("embedding_length") // settings.integer("attention.head_count")
    rotated = settings.integer("rope.dimension_count", head)
    found: dict[str, Any] = {
        "sliding_window": settings.get("attention.sliding_window") or None,
        "partial_rotary_factor": rotated / head,
        "original_max_position_embeddings": settings.get("rope.scaling.original_context_length"),
    }
    if _LONG in file.tensors or _SHORT in file.tensors:
        found["rope_scaling"] = {
            "rope_type": "longrope",
            "long_factor": _divisors(file, _LONG, rotated).tolist(),
            "short_factor": _divisors(file, _SHORT, rotated).tolist(),
            "attention_factor": settings.get("rope.scaling.attn_factor"),
        }
    return found


def _granite(file: GgufFile, settings: Settings) -> Mapping[str, Any]:
    names = {"attention.scale": "attention_multiplier", "logit_scale": "logits_scaling"}
    names |= {"embedding_scale": "embedding_multiplier", "residual_scale": "residual_multiplier"}
    return {name: settings.number(stored, 1.0) for stored, name in names.items()}


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture("llama", has_rotary_pairs=True, positions=(_FREQUENCY_DIVISORS,)),
    "qwen2": Architecture("qwen2"),
    "qwen3": Architecture("qwen3", {**_LAYER, **_QUERY_KEY_NORMS}),
    "smollm3": Architecture("smollm3", has_rotary_pairs=True),
    "granite": Architecture(
        "granite",
        has_rotary_pairs=True,
        others=("attention.scale", "embedding_scale", "residual_scale", "logit_scale"),
        further=_granite,
    ),
    "olmo2": Architecture("olmo2", {**_ATTENTION, **_MLP, **_OUTPUT_NORMS, **_QUERY_KEY_NORMS}),
    "phi3": Architecture(
        "phi3",
        {
            "attn_norm": "input_layernorm",
            "attn_qkv": "self_attn.qkv_proj",
            "attn_output": "self_attn.o_proj",
            "ffn_norm": "post_attention_layernorm",
            "ffn_up": "mlp.gate_up_proj",
            "ffn_down": "mlp.down_proj",
        },
        others=("attention.sliding_window", "rope.scaling.attn_factor"),
        further=_phi3,
        positions=(_LONG, _SHORT),
    ),
    "gemma2": Architecture(
        "gemma2",
        _GEMMA_LAYER,
        norm_offset=1.0,
        others=("attention.sliding_window", "attn_logit_softcapping", "final_logit_softcapping"),
        further=_gemma2,
    ),
    "gemma3": Architecture(
        "gemma3_text",
        {**_GEMMA_LAYER, **_QUERY_KEY_NORMS},
        norm_offset=1.0,
        others=("attention.sliding_window", "final_logit_softcapping"),
        further=_gemma3,
    ),
}
"""By ``general.architecture``."""


def config_of(file: GgufFile) -> dict[str, Any]:
    """Return the settings as ``config.json`` of transformers has them.

    Raises:
        CheckpointError: The architecture is not supported, or a setting is missing or has no meaning here.
    """
    architecture = _architecture(file)
    settings = file.settings()
    unknown = sorted(set(settings.names) - {*_COMMON_SETTINGS, *architecture.others})
    if unknown:
        found = ", ".join(f"{name}={settings.get(name)!r:.80}" for name in unknown[:4])
        raise file.fail(f"the network has settings that are not read: {found}")
    for name in settings.names:
        if isinstance(settings.get(name), (list, np.ndarray)):
            raise file.fail(f"layers differ in {name}")
    heads, hidden = settings.integer("attention.head_count"), settings.integer("embedding_length")
    head = settings.integer("attention.key_length", hidden // heads)
    further = architecture.further(file, settings)
    for name in ("attention.value_length", "rope.dimension_count"):
        if settings.get(name, head) != head and "partial_rotary_factor" not in further:
            raise file.fail(f"{name}={settings.get(name)} is not the size of a head, {head}")
    vocab_size = _stored(file, _EMBEDDING).shape[0]
    num_tokens = len(file.value("tokenizer.ggml.tokens", list, []))
    if num_tokens != vocab_size:
        raise file.fail(f"the tokenizer has {num_tokens} tokens, and {_EMBEDDING} {vocab_size} rows")
    return {
        "model_type": architecture.model_type,
        "dtype": "float32",
        "num_hidden_layers": settings.integer("block_count"),
        "hidden_size": hidden,
        "intermediate_size": settings.integer("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": settings.integer("attention.head_count_kv", heads),
        "head_dim": head,
        "max_position_embeddings": settings.integer("context_length"),
        "rms_norm_eps": settings.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": settings.number("rope.freq_base", 10000.0),
        "rope_scaling": _rope_scaling(file, settings, head),
        "attention_bias": "blk.0.attn_output.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in file.tensors,
        "vocab_size": vocab_size,
        "tie_word_embeddings": _HEAD not in file.tensors,
        "quantization_config": {"quant_method": "gguf", "bits": _engine_bits(file)},
        **further,
    }


def _rope_scaling(file: GgufFile, settings: Settings, head_size: int) -> Mapping[str, Any] | None:
    kind = settings.get("rope.scaling.type", "none")
    if _FREQUENCY_DIVISORS in file.tensors:
        return _llama3(file, settings.number("rope.freq_base", 10000.0), head_size)
    if kind == "none" or (kind == "linear" and settings.get("rope.scaling.factor", 1.0) == 1.0):
        return None
    found = {"rope_type": kind, "factor": settings.number("rope.scaling.factor")}
    if kind == "linear":
        return found
    if kind != "yarn":
        raise file.fail(f"rope.scaling.type={kind!r:.80}; supported: linear, yarn")
    return {
        **found,
        "original_max_position_embeddings": settings.integer("rope.scaling.original_context_length"),
        "beta_fast": settings.get("rope.scaling.yarn_beta_fast"),
        "beta_slow": settings.get("rope.scaling.yarn_beta_slow"),
        "attention_factor": settings.get("rope.scaling.yarn_attn_factor"),
    }


def _llama3(file: GgufFile, base: float, head_size: int) -> Mapping[str, Any] | None:
    """Return the scaling that a table of divisors was made of: that of Llama 3.1 to 3.3, with any factor."""
    divisors = _divisors(file, _FREQUENCY_DIVISORS, head_size)
    factor = round(float(divisors.max()), 4)
    if factor == 1.0:
        return None
    scaling = RotaryScaling("llama3", factor, 1.0, 4.0, 8192)
    plain, scaled = (rotary_frequencies(Rotary(base, head_size, each)) for each in (None, scaling))
    if not np.allclose(divisors, plain / scaled, rtol=1e-5):
        table = f"{_FREQUENCY_DIVISORS}, divisors from {divisors.min():g} to {divisors.max():g}"
        raise file.fail(f"positions are scaled by an unknown table, not that of Llama 3.1 to 3.3: {table}")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }


def _divisors(file: GgufFile, name: str, size: int) -> Float32Array:
    """Return a positive number for each of the frequencies of so many coordinates."""
    stored = _stored(file, name)
    if stored.shape != (size // 2,) or not stored.type.is_float:
        raise file.fail(f"{name} is {stored.type.name} {list(stored.shape)}, not {size // 2} numbers")
    values = dequantized(stored.type.name, stored.read())
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise file.fail(f"{name} has others than numbers above 0")
    return values


def tensors_of(file: GgufFile) -> dict[str, Tensor]:
    """Return the tensors under their names in transformers; they are read when their numbers are asked for.

    A quantized projection keeps its blocks, under a name that ends with the type, such as
    ``model.layers.0.mlp.up_proj.q4_k``. So does the output head, also where it is tied to the embedding. A
    quantized embedding becomes float16, whose rounding is a thousandth of the steps of the coarsest type.

    Raises:
        CheckpointError: The file has tensors that its architecture does not have.
    """
    return dict(_translated(file))


def type_counts(file: GgufFile) -> Counter[str]:
    """Return the number of weights by their type in the file."""
    counts = Counter[str]()
    for tensor in file.tensors.values():
        counts[tensor.type.name] += math.prod(tensor.shape)
    return counts


def _engine_bits(file: GgufFile) -> float:
    """Return the bits of a weight of the layers in an engine, on average; floats become INT8."""
    layers = [tensor for name, tensor in file.tensors.items() if name.startswith("blk.")]
    sizes = [math.prod(tensor.shape) for tensor in layers]
    if not sum(sizes):
        raise file.fail("the layers have no weights")
    return float(np.average([ENGINE_BITS.get(tensor.type.name, 8) for tensor in layers], weights=sizes))


def _translated(file: GgufFile) -> Iterator[tuple[str, Tensor]]:
    architecture, settings = _architecture(file), file.settings()
    count = settings.integer("block_count")
    layers = {name.split(".")[1] for name in file.tensors if name.startswith("blk.")}
    if layers != {*map(str, range(count))}:
        raise file.fail(f"block_count={count}, and the tensors are of {len(layers)} layers")
    heads = settings.integer("attention.head_count")
    paired = {"attn_q": heads, "attn_k": settings.integer("attention.head_count_kv", heads)}
    for name, stored in file.tensors.items():
        if name in architecture.positions:
            continue
        block, _, rest = name.removeprefix("blk.").partition(".")
        part, _, kind = rest.rpartition(".")
        is_known = part in architecture.layer and block.isdigit() and kind in ("weight", "bias")
        if name not in _WHOLE and not (name.startswith("blk.") and is_known):
            raise file.fail(f"the tensor {name!r:.80} has no place in a network of {file.architecture}")
        new_name = _WHOLE.get(name) or f"model.layers.{block}.{architecture.layer[part]}.{kind}"
        num_heads = paired.get(part) if architecture.has_rotary_pairs else None
        if num_heads is not None and stored.shape[0] % (2 * num_heads):
            raise file.fail(f"{name} has {stored.shape[0]} rows, no pairs for {num_heads} heads")
        yield _named(new_name, stored, num_heads, architecture.norm_offset)
        if name == _EMBEDDING and _HEAD not in file.tensors and not stored.type.is_float:
            yield _named(_WHOLE[_HEAD], stored, None, 0)  # for products, which read blocks


def _named(name: str, stored: StoredTensor, num_heads: int | None, norm_offset: float) -> tuple[str, Tensor]:
    kind = stored.type.name
    if name.endswith("norm.weight") and norm_offset:
        offset = np.float32(norm_offset)
        return name, Tensor("F32", stored.shape, lambda: dequantized(kind, stored.read()) - offset)
    if name == _WHOLE[_EMBEDDING]:  # used more than once
        if stored.type.is_float:
            return name, Tensor(kind, stored.shape, cache(stored.read))
        return name, Tensor("F16", stored.shape, cache(lambda: dequantized(kind, stored.read(), np.float16)))
    if stored.type.is_float:
        return name, Tensor(kind, stored.shape, lambda: _unpaired(stored.read(), num_heads))
    blocks = Tensor("U8", stored.stored_shape, lambda: _unpaired(stored.read(), num_heads))
    return f"{name.removesuffix('.weight')}.{kind.lower()}", blocks


def _unpaired(rows: AnyArray, num_heads: int | None) -> AnyArray:
    """Put rows back: each head has its first numbers of all pairs, then the second ones; None: no pairs."""
    if num_heads is None:
        return rows
    return rows.reshape(num_heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _stored(file: GgufFile, name: str) -> StoredTensor:
    if name not in file.tensors:
        raise file.fail(f"the tensor {name} is missing")
    return file.tensors[name]


def _architecture(file: GgufFile) -> Architecture:
    found = ARCHITECTURES.get(file.architecture)
    if found is None:
        raise file.fail(
            f"general.architecture={file.architecture!r:.80}; supported: {', '.join(ARCHITECTURES)}",
            "use the checkpoint in the form of transformers; docs/reference/models.md lists what is read so",
        )
    return found
