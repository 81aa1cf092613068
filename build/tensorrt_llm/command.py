"""Compose the ``trtllm-build`` command of an engine, with the flags of TensorRT-LLM 1.2.1.

Flags are passed even if they equal the default, because defaults have changed between versions (such as
``use_paged_context_fmha``). ``tests/support/tensorrt_llm_1_2_1.py`` lists the source of each flag.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from build.tensorrt_llm.rules.pair import Pair, Side

LOGITS_DTYPE = "float32"

GATHERS_LOGITS = {"draft": True, "target": False}
"""Roles whose engines are built with ``--gather_generation_logits``.

The target applies the ratio rule to the draft's logits. Without the flag the draft refuses every request for
them (``executorImpl.cpp`` @b35ac1b6): Triton's backend has no parameter that could replace it.
``trtllm-build`` calls the flag deprecated, because TensorRT-LLM's own programs set it when they run.
"""


@dataclass(frozen=True)
class Paths:
    """Files that a build reads and writes.

    Attributes:
        checkpoint: The TensorRT-LLM checkpoint.
        output: Directory for the engine.
        timing_cache: Timing cache of an earlier build on this GPU, or None.
        new_timing_cache: File for the timing cache of this build.
    """

    checkpoint: Path
    output: Path
    timing_cache: Path | None
    new_timing_cache: Path


def _switch(value: bool) -> str:
    return "enable" if value else "disable"


def engine_flags(pair: Pair, side: Side) -> dict[str, str]:
    """Return all flags of an engine except paths; "" is the value of a flag that takes none.

    ``max_seq_len`` is that of the server; ``trtllm-build`` itself adds ``max_draft_len`` for the target.
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
        # trtllm-build would force it on with an FP8 KV cache and off otherwise.
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
    if GATHERS_LOGITS[side.role]:
        flags["gather_generation_logits"] = ""
    if side.role == "target":
        flags["speculative_decoding_mode"] = "draft_tokens_external"
        flags["max_draft_len"] = str(serving.max_draft_len)
        if not section.multiple_profiles:  # trtllm-build refuses both together
            flags["opt_num_tokens"] = str(opt_num_tokens(pair))
    return flags


def opt_num_tokens(pair: Pair) -> int:
    """Return the step size for which TensorRT chooses the target's kernels: a full batch of drafts.

    By default it is ``max_batch_size``, as if each request added one token.
    """
    serving = pair.recipe.serving
    return min(serving.max_batch_size * (serving.max_draft_len + 1), pair.max_num_tokens)


def build_command(pair: Pair, side: Side, paths: Paths) -> list[str]:
    """Return the command; of one worker per rank, ``trtllm-build`` uses as many as there are GPUs."""
    words = ["trtllm-build", "--checkpoint_dir", str(paths.checkpoint), "--output_dir", str(paths.output)]
    for name, value in engine_flags(pair, side).items():
        words += [f"--{name}", value] if value else [f"--{name}"]
    words += ["--workers", str(side.config.world_size), "--log_level", "info"]
    if paths.timing_cache is not None:
        words += ["--input_timing_cache", str(paths.timing_cache)]
    return [*words, "--output_timing_cache", str(paths.new_timing_cache)]
