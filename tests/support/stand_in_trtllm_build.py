"""A ``trtllm-build`` without a GPU: it accepts the flags of 1.2.1, refuses others, and writes the same files.

It changes some settings silently, as NVIDIA's ``builder.py`` does (see the comments), so that the check of a
build has something to find. ``STAND_IN_FAULT`` names a way to fail.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

from tests.support.tensorrt_llm_1_2_1 import FLAGS, NUMBER, SET

SM = 90
_SIZES = (
    "max_batch_size",
    "max_input_len",
    "max_seq_len",
    "max_beam_width",
    "max_num_tokens",
    "max_draft_len",
)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="trtllm-build", allow_abbrev=False)
    for name, flag in FLAGS.items():
        if flag.values == SET:
            parser.add_argument(f"--{name}", action="store_true")
        elif isinstance(flag.values, tuple):
            parser.add_argument(f"--{name}", choices=flag.values, default=flag.default)
        else:
            parser.add_argument(f"--{name}", type=int if flag.values == NUMBER else str, default=flag.default)
    return parser


def _changed_silently(options: argparse.Namespace, checkpoint: dict[str, Any]) -> None:
    """Return what builder.py changes with at most a warning, in its order."""
    quantization = checkpoint.get("quantization") or {}
    weights, cache = quantization.get("quant_algo"), quantization.get("kv_cache_quant_algo")
    options.max_input_len = min(options.max_input_len, options.max_seq_len)
    everything = options.max_seq_len * options.max_batch_size
    options.max_num_tokens = max(min(options.max_num_tokens, everything), options.tokens_per_block)
    if checkpoint["mapping"]["tp_size"] == 1 or checkpoint["architecture"] != "LlamaForCausalLM":
        options.reduce_fusion = "disable"
    if options.speculative_decoding_mode is not None:
        options.max_seq_len += options.max_draft_len
        rows = options.max_batch_size * (options.max_draft_len + 1)
        options.max_num_tokens = max(options.max_num_tokens, rows)
    fp8_attention = weights in ("FP8", "W4A8_AWQ", "NVFP4") and SM >= 89
    if not fp8_attention:
        options.use_fp8_context_fmha = "disable"
        if cache == "FP8":
            options.use_paged_context_fmha = "disable"
    elif options.use_paged_context_fmha == "enable":
        options.use_fp8_context_fmha = "enable" if cache == "FP8" else "disable"
    if cache == "INT8":
        options.use_paged_context_fmha = "disable"


def _config(options: argparse.Namespace, checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Return an engine's config.json, as EngineConfig.to_dict of builder.py makes it."""
    plugins = {
        name: getattr(options, name)
        for name, flag in FLAGS.items()
        if "plugin.py" in flag.source and name != "tokens_per_block"
    }
    switches = {"enable": True, "disable": False}
    plugin_config = {
        name: None if name.endswith("_plugin") and value == "disable" else switches.get(value, value)
        for name, value in plugins.items()
    }
    # speculative_decoding_mode: SpeculativeDecodingMode is an IntFlag, 1 none, 2 external (seen in 0.13).
    mode = 2 if options.speculative_decoding_mode == "draft_tokens_external" else 1
    return {
        "version": os.environ.get("STAND_IN_VERSION", "1.2.1"),
        "pretrained_config": {**checkpoint, "logits_dtype": options.logits_dtype or "float32"},
        "build_config": {
            **{name: getattr(options, name) for name in _SIZES},
            "kv_cache_type": options.kv_cache_type.upper(),
            # check_max_num_tokens of builder.py @008b2b8d
            "opt_num_tokens": options.opt_num_tokens or options.max_batch_size * options.max_beam_width,
            "gather_context_logits": options.gather_context_logits,
            "gather_generation_logits": options.gather_generation_logits,
            "speculative_decoding_mode": mode,
            "plugin_config": {**plugin_config, "tokens_per_block": options.tokens_per_block},
        },
    }


def main() -> int:
    """Build an engine directory."""
    options = _parser().parse_args()
    fault = os.environ.get("STAND_IN_FAULT", "")
    if options.gather_context_logits and options.max_draft_len:
        raise RuntimeError("Gather context logits is not support with draft len > 0.")
    if options.multiple_profiles == "enable" and options.opt_num_tokens is not None:
        raise RuntimeError("multiple_profiles is enabled, while opt_num_tokens is set.")
    # main() of build.py @65f1d153 says so of every build, and still does what the flag asks for.
    print("[TRT-LLM] [W] Option --gather_generation_logits is deprecated", flush=True)
    source, output = Path(options.checkpoint_dir), Path(options.output_dir)
    checkpoint = json.loads((source / "config.json").read_text(encoding="utf-8"))
    print("[TRT-LLM] [I] stand-in", flush=True)
    if fault == "exit":
        print("[TRT-LLM] [E] Error Code 2: OutOfMemory", flush=True)
        return 1
    output.mkdir(parents=True, exist_ok=True)
    _changed_silently(options, checkpoint)
    (output / "config.json").write_text(json.dumps(_config(options, checkpoint), indent=4), encoding="utf-8")
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "slow":
        started = Path(os.environ["STAND_IN_STARTED"])
        started.touch()
        while started.exists():
            time.sleep(0.02)
    if fault == "full disk":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
    ranks = checkpoint["mapping"]["world_size"]
    for rank in range(ranks):
        weights = (source / f"rank{rank}.safetensors").read_bytes()
        content = b"" if fault == "empty" else b"plan" + weights[:4096]
        if not (fault == "half" and rank == ranks - 1):
            (output / f"rank{rank}.engine").write_bytes(content)
    if options.input_timing_cache is not None and not Path(options.input_timing_cache).is_file():
        print("[TRT-LLM] [W] Invalid timing cache, using freshly created one", flush=True)
    Path(options.output_timing_cache).write_bytes(b"tactics")
    return 0


if __name__ == "__main__":
    sys.exit(main())
