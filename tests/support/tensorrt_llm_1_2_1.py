"""Every flag that we pass to ``trtllm-build`` of TensorRT-LLM 1.2.1, with its values and source.

Read in the repository NVIDIA/TensorRT-LLM: ``commands/build.py`` at 65f1d153 (its parser) and
``plugin/plugin.py`` at c20322ff (``cli_plugin_args`` and ``PluginConfig``), both of the 1.1 to 1.2
generation; that the wheel 1.2.1 carries them unchanged is inferred, not seen. Tests compare these tables
with what is emitted.
"""

from __future__ import annotations

from dataclasses import dataclass

_BUILD = "tensorrt_llm/commands/build.py parse_arguments @65f1d153"
_PLUGIN = "tensorrt_llm/plugin/plugin.py PluginConfig @c20322ff"
_LOGGER = "tensorrt_llm/logger.py severity_map @027cd518"
_PLUGIN_DTYPES = ("auto", "float16", "float32", "bfloat16", "int32", "disable")
_SWITCH = ("enable", "disable")

# The values of a flag: a list of words, or one of these kinds.
PATH, NUMBER, SET = "a path", "a whole number", "no value"


@dataclass(frozen=True)
class Flag:
    """One flag; ``values``: the words that it accepts, or a kind of value."""

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
    "log_level": Flag(("internal_error", "error", "warning", "info", "verbose"), "info", _LOGGER),
    "logits_dtype": Flag(("float16", "float32"), None, _BUILD),
    "gather_context_logits": Flag(SET, None, _BUILD),
    "gather_generation_logits": Flag(SET, None, _BUILD),
    "speculative_decoding_mode": Flag(
        ("draft_tokens_external", "lookahead_decoding", "medusa", "explicit_draft_tokens", "eagle"),
        None,
        _BUILD,
    ),
    "max_draft_len": Flag(NUMBER, "0", _BUILD),
    "gpt_attention_plugin": Flag(_PLUGIN_DTYPES, "auto", _PLUGIN),
    "gemm_plugin": Flag((*_PLUGIN_DTYPES[:-1], "fp8", "nvfp4", "disable"), None, _PLUGIN),
    "context_fmha": Flag(_SWITCH, "enable", _PLUGIN),
    "use_paged_context_fmha": Flag(_SWITCH, "enable", _PLUGIN),
    "use_fp8_context_fmha": Flag(_SWITCH, "enable", _PLUGIN),
    "remove_input_padding": Flag(_SWITCH, "enable", _PLUGIN),
    "tokens_per_block": Flag(NUMBER, "32", _PLUGIN),
    "multiple_profiles": Flag(_SWITCH, "disable", _PLUGIN),
    "reduce_fusion": Flag(_SWITCH, "disable", _PLUGIN),
}

QUANT_CONFIG = {
    *("quant_algo", "kv_cache_quant_algo", "group_size", "smoothquant_val", "clamp_val"),
    *("use_meta_recipe", "has_zero_point", "pre_quant_scale", "exclude_modules"),
}
"""Keys of ``quantization`` in a checkpoint's ``config.json``: a dataclass, which refuses all others."""

REQUIRED_CONFIG = {"architecture", "dtype", "hidden_size", "num_hidden_layers", "num_attention_heads"}
"""Keys of ``config.json`` for which ``PretrainedConfig`` @01ea6d79 has no default; it keeps unknown ones."""
