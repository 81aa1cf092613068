"""The exact ``trtllm-build`` command of an engine, in the flags of TensorRT-LLM 1.2.1.

Where a default of the builder matters here it is written out, because defaults changed between versions
(``use_paged_context_fmha`` did). Each flag and its source: ``tests/tensorrt_llm_1_2_1.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from build.tensorrt_llm.pair import Pair, Side

LOGITS_DTYPE = "float32"


@dataclass(frozen=True)
class Paths:
    """Files that a build reads and writes.

    Attributes:
        checkpoint: TensorRT-LLM checkpoint.
        output: Directory that gets the engine.
        timing_cache: Tactics of an earlier build on this GPU, or None.
        new_timing_cache: File that gets those of this one.
    """

    checkpoint: Path
    output: Path
    timing_cache: Path | None
    new_timing_cache: Path


def _switch(value: bool) -> str:
    return "enable" if value else "disable"


def engine_flags(pair: Pair, side: Side) -> dict[str, str]:
    """Everything that decides what an engine can do, without paths.

    ``max_seq_len`` is what the server promises; the builder adds ``max_draft_len`` to the target's itself.
    """
    section, serving = side.engine.tensorrt_llm, pair.recipe.serving
    fp8_weights = side.config.quant_algo == "FP8"
    flags = {
        "max_batch_size": str(serving.max_batch_size),
        "max_input_len": str(side.max_input_len or serving.max_seq_len - 1),
        "max_seq_len": str(serving.max_seq_len),
        "max_num_tokens": str(pair.max_num_tokens),
        "max_beam_width": "1",
        "kv_cache_type": "paged",
        "tokens_per_block": str(section.tokens_per_block),
        "logits_dtype": LOGITS_DTYPE,
        "remove_input_padding": "enable",
        "context_fmha": "enable",
        "use_paged_context_fmha": "enable",
        # The builder forces it on beside an FP8 KV cache and off otherwise; said here, nothing is forced.
        "use_fp8_context_fmha": _switch(side.config.kv_cache_quant_algo == "FP8"),
        "gpt_attention_plugin": "auto",
        "gemm_plugin": section.gemm_plugin or ("disable" if fp8_weights else "auto"),
        "multiple_profiles": _switch(section.multiple_profiles),
        "reduce_fusion": _switch(section.reduce_fusion),
    }
    if section.low_latency_gemm:
        flags["low_latency_gemm_plugin"] = "fp8"
    if section.gemm_swiglu:
        flags["gemm_swiglu_plugin"] = "fp8"
    if side.role == "target":
        flags["speculative_decoding_mode"] = "draft_tokens_external"
        flags["max_draft_len"] = str(serving.max_draft_len)
    return flags


def build_command(pair: Pair, side: Side, paths: Paths) -> list[str]:
    """The command, word by word; one worker per rank, of which the builder uses as many as there are GPUs."""
    words = ["trtllm-build", "--checkpoint_dir", str(paths.checkpoint), "--output_dir", str(paths.output)]
    for name, value in engine_flags(pair, side).items():
        words += [f"--{name}", value]
    words += ["--workers", str(side.config.world_size), "--log_level", "info"]
    if paths.timing_cache is not None:
        words += ["--input_timing_cache", str(paths.timing_cache)]
    return [*words, "--output_timing_cache", str(paths.new_timing_cache)]
