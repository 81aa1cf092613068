"""Lists the arguments of TensorRT-LLM's LLM API that we write.

Sources are files of the public repository NVIDIA/TensorRT-LLM. For 1.4: the schema of the serving
configuration that it publishes (PR #19906), ``schemas/trtllm-serve-config.schema.json`` @20e20312, and what
the validators of ``llmapi/llm_args.py`` @00043967 add. For 1.3: ``llm_args.py`` and ``commands/serve.py`` at
00043967 and 00209af1, and a copy of 1.3.0rc3. They were read, neither copied nor imported: the package needs
CUDA, and its wheel comes from an index of NVIDIA's own. Where it is installed, ``test_llm_api.py`` asks the
schema itself. Upstream refuses unknown keys, so this table does too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Field(NamedTuple):
    """One field: its type, and the words or the range that it may hold."""

    kind: type
    words: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None


_SIZE = Field(int, least=1)

_CACHE: Mapping[str, Any] = {
    "enable_block_reuse": Field(bool),
    "tokens_per_block": _SIZE,
    "dtype": Field(str, words=("auto", "float16", "bfloat16", "float32", "fp8", "nvfp4")),
    "free_gpu_memory_fraction": Field(float, least=0, most=1),
}
_COMMON: Mapping[str, Any] = {
    "model": Field(str),
    "backend": Field(str, words=("pytorch",)),
    "tensor_parallel_size": _SIZE,
    "pipeline_parallel_size": _SIZE,
    "max_batch_size": _SIZE,
    "max_num_tokens": _SIZE,
    "max_seq_len": _SIZE,
    "disable_overlap_scheduler": Field(bool),
}


def _draft(decoding_type: str, **fields: Field) -> Mapping[str, Any]:
    return {
        "decoding_type": Field(str, words=(decoding_type,)),
        "max_draft_len": _SIZE,
        # An alias of speculative_model in both.
        "speculative_model_dir": Field(str),
        **fields,
    }


_SWITCH = Field(bool)
_TREE = {"dynamic_tree_max_topK": _SIZE, "max_total_draft_tokens": _SIZE}
DRAFTS = {
    "Draft_Target": _draft("Draft_Target", enable_penalty=_SWITCH),
    "PARD": _draft("PARD", mask_token_id=Field(int, least=0), enable_penalty=_SWITCH),
    "Eagle3": _draft("Eagle3", use_dynamic_tree=_SWITCH, enable_penalty=_SWITCH, **_TREE),
}
"""``decoding_type`` of 1.4 -> what its ``speculative_config`` takes of what we write."""

LLM_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "1.3": {
        **_COMMON,
        "kv_cache_config": _CACHE,
        "speculative_config": _draft("Draft_Target", allow_advanced_sampling=_SWITCH),
    },
    "1.4": {
        **_COMMON,
        "kv_cache_config": {**_CACHE, "use_kv_cache_manager_v2": _SWITCH},
        "cache_transceiver_config": {"transceiver_runtime": Field(str, words=("CPP", "PYTHON", "auto"))},
        "telemetry_config": {"disabled": _SWITCH},
        "speculative_config": DRAFTS["Draft_Target"],
    },
}
"""Release -> what its ``LLM()`` takes, as nested tables of fields."""

TRITON_CONFIG = {"max_batch_size": Field(int, least=0, most=0), "decoupled": Field(bool)}
"""``triton_config``: triton_backend/all_models/llmapi/tensorrt_llm/1/model.py @044a90d2."""

SERVE_OPTIONS = ("--host", "--port", "--extra_llm_api_options")
"""Options of ``trtllm-serve``, which also takes the model; all have one value."""


def violations(document: Any, table: Mapping[str, Any], where: str = "") -> list[str]:
    """Return what upstream would refuse: unknown keys, other types, other words, values out of range."""
    if not isinstance(document, Mapping):
        return [f"{where or 'document'}: not a mapping"]
    found = [f"{where}{name}: unknown" for name in document if name not in table]
    for name, value in document.items():
        field = table.get(name)
        if isinstance(field, Mapping):
            found += violations(value, field, f"{where}{name}.")
        elif field is not None:
            found += [f"{where}{name}: {problem}" for problem in _problems(value, field)]
    if "decoding_type" in table:  # its validators want these, whatever the draft
        needed = ("decoding_type", "max_draft_len", "speculative_model_dir")
        found += [f"{where}{name}: missing" for name in needed if name not in document]
    return found


def _problems(value: Any, field: Field) -> list[str]:
    is_number = field.kind is float and type(value) is int
    if type(value) is not field.kind and not is_number:
        return [f"{value!r} is no {field.kind.__name__}"]
    if field.words and value not in field.words:
        return [f"{value!r} is none of {', '.join(field.words)}"]
    low = field.least is not None and value < field.least
    high = field.most is not None and value > field.most
    return [f"{value!r} is out of range"] if low or high else []
