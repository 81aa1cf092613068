"""Every flag that we write for ``trtllm-build`` of TensorRT-LLM 1.2.1, its values, and where it stands.

Read in the repository NVIDIA/TensorRT-LLM: ``commands/build.py`` at 65f1d153 (its parser) and
``plugin/plugin.py`` at c20322ff (``cli_plugin_args`` and ``PluginConfig``), both of the 1.1 to 1.2
generation; that the wheel 1.2.1 carries them unchanged is inferred, not seen. A test compares this table
with what is emitted.
"""

from __future__ import annotations

from dataclasses import dataclass

_BUILD = "tensorrt_llm/commands/build.py parse_arguments @65f1d153"
_PLUGIN = "tensorrt_llm/plugin/plugin.py PluginConfig @c20322ff"
_PLUGIN_DTYPES = ("auto", "float16", "float32", "bfloat16", "int32", "disable")
_SWITCH = ("enable", "disable")

# The values of a flag: words, or one of these kinds.
PATH, NUMBER, SET = "a path", "a whole number", "no value"


@dataclass(frozen=True)
class Flag:
    """One flag.

    Attributes:
        values: Words that it takes, or a kind of value.
        default: What it has if it is not given.
        source: File and commit.
    """

    values: tuple[str, ...] | str
    default: str | None
    source: str


FLAGS = {
    "checkpoint_dir": Flag(PATH, None, _BUILD),
    "output_dir": Flag(PATH, "engine_outputs", _BUILD),
    "max_batch_size": Flag(NUMBER, "2048", _BUILD),
    "max_input_len": Flag(NUMBER, "1024", _BUILD),
    "max_seq_len": Flag(NUMBER, None, _BUILD),
    "max_beam_width": Flag(NUMBER, "1", _BUILD),
    "max_num_tokens": Flag(NUMBER, "8192", _BUILD),
    "opt_num_tokens": Flag(NUMBER, None, _BUILD),
    # enum_type(KVCacheType): any case of its names.
    "kv_cache_type": Flag(("continuous", "paged", "disabled"), "paged", _BUILD),
    "input_timing_cache": Flag(PATH, None, _BUILD),
    "output_timing_cache": Flag(PATH, "model.cache", _BUILD),
    "workers": Flag(NUMBER, "1", _BUILD),
    # severity_map of tensorrt_llm/logger.py, from memory: UNCONFIRMED apart from info, the default.
    "log_level": Flag(("internal_error", "error", "warning", "info", "verbose", "debug"), "info", _BUILD),
    "logits_dtype": Flag(("float16", "float32"), None, _BUILD),
    "gather_context_logits": Flag(SET, None, _BUILD),
    "speculative_decoding_mode": Flag(
        ("draft_tokens_external", "lookahead_decoding", "medusa", "explicit_draft_tokens", "eagle"),
        None,
        _BUILD,
    ),
    "max_draft_len": Flag(NUMBER, "0", _BUILD),
    "gpt_attention_plugin": Flag(_PLUGIN_DTYPES, "auto", _PLUGIN),
    "nccl_plugin": Flag(_PLUGIN_DTYPES, "auto", _PLUGIN),
    "gemm_plugin": Flag((*_PLUGIN_DTYPES[:-1], "fp8", "nvfp4", "disable"), None, _PLUGIN),
    "gemm_swiglu_plugin": Flag(("fp8", "disable"), "disable", _PLUGIN),
    "low_latency_gemm_plugin": Flag(("fp8", "disable"), "disable", _PLUGIN),
    "low_latency_gemm_swiglu_plugin": Flag(("fp8", "disable"), "disable", _PLUGIN),
    "context_fmha": Flag(_SWITCH, "enable", _PLUGIN),
    "use_paged_context_fmha": Flag(_SWITCH, "enable", _PLUGIN),
    "use_fp8_context_fmha": Flag(_SWITCH, "enable", _PLUGIN),
    "remove_input_padding": Flag(_SWITCH, "enable", _PLUGIN),
    "tokens_per_block": Flag(NUMBER, "32", _PLUGIN),
    "multiple_profiles": Flag(_SWITCH, "disable", _PLUGIN),
    "reduce_fusion": Flag(_SWITCH, "disable", _PLUGIN),
    "use_fused_mlp": Flag(_SWITCH, "enable", _PLUGIN),
    "user_buffer": Flag(_SWITCH, "disable", _PLUGIN),
}
