"""Run ModelOpt in its own process: ``python -m build.quantization.modelopt_worker JOB.json``.

``build/quantize.py`` writes the job file: ``source`` (a Hugging Face directory), ``decoder_type``,
``quantization``, ``kv_cache_dtype``, ``format``, ``tp_size``, ``pp_size``, ``pad_vocab_size_to``, ``pieces``
(an .npy file, int32 [n, length], or null) and ``output``. Output lines that begin with ``PROGRESS`` are shown
to the user; all other output, including that of libraries, is logged. A process exports its model only once,
because the export may modify the model.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import modelopt.torch.quantization as mtq
import numpy as np
import torch
from modelopt.torch.export import export_hf_checkpoint, export_tensorrt_llm_checkpoint
from transformers import AutoModelForCausalLM

PROGRESS = "progress: "
_CONFIGS = {
    "fp8": mtq.FP8_DEFAULT_CFG,
    "int8_sq": mtq.INT8_SMOOTHQUANT_CFG,
    "int4_awq": mtq.INT4_AWQ_CFG,
    "w4a8_awq": mtq.W4A8_AWQ_BETA_CFG,
}
_BATCH_SIZE = 4
_REPORT_INTERVAL_S = 5.0


def main(arguments: list[str]) -> int:
    """Load, quantize and export the model of one job."""
    job = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    started_s = time.monotonic()
    model = load_model(Path(job["source"]))
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    _report(f"{num_parameters / 1e6:.1f} M parameters loaded, {time.monotonic() - started_s:.1f} s")
    if job["pad_vocab_size_to"] is not None:
        pad_vocabulary(model, job["pad_vocab_size_to"])
    if job["pieces"] is not None:
        pieces = torch.from_numpy(np.load(job["pieces"]).astype(np.int64))
        model = mtq.quantize(
            model,
            quantization_config(job["quantization"], job["kv_cache_dtype"]),
            _forward_loop(pieces, started_s),
        )
    output = Path(job["output"])
    if job["format"] == "hugging_face":
        export_hf_checkpoint(model, _stored_type(model), export_dir=output)
    else:
        export(model, job["decoder_type"], output, job["tp_size"], job["pp_size"])
    _report(f"exported, {time.monotonic() - started_s:.1f} s")
    return 0


def load_model(directory: Path) -> Any:
    """Load a causal language model with the type of its checkpoint, on the GPUs if there are any."""
    placement = {"device_map": "auto"} if torch.cuda.is_available() else {}
    model = AutoModelForCausalLM.from_pretrained(directory, dtype="auto", local_files_only=True, **placement)
    model.eval()
    return model


def pad_vocabulary(model: Any, vocab_size: int) -> None:
    """Pad embedding and output head with rows that are never looked up and never have the largest logit.

    New rows of the embedding are zero. New rows of the head are the mean of its rows, whose logit is the mean
    of all logits and therefore at most the largest (docs/how-to/nvidia-gpus.md).
    """
    table, head = model.get_input_embeddings(), model.get_output_embeddings()
    num_new = vocab_size - table.weight.shape[0]
    mean = head.weight.float().mean(dim=0, keepdim=True).to(head.weight.dtype)
    rows = torch.cat([head.weight, mean.expand(num_new, -1)])
    table.weight = torch.nn.Parameter(torch.cat([table.weight, torch.zeros_like(rows[:num_new])]))
    head.weight = torch.nn.Parameter(rows)
    table.num_embeddings = head.out_features = model.config.vocab_size = vocab_size
    model.config.tie_word_embeddings, model.all_tied_weights_keys = False, {}


def quantization_config(quantization: str, kv_cache_dtype: str) -> Any:
    """Return ModelOpt's configuration; output head and embedding always stay floating point."""
    config: Any = _CONFIGS[quantization]
    if kv_cache_dtype == "fp8":
        config = mtq.update_quant_cfg_with_kv_cache_quant(config, mtq.FP8_KV_CFG["quant_cfg"])
    return config


def export(model: Any, decoder_type: str, output: Path, tp_size: int, pp_size: int) -> None:
    """Write ``config.json`` and one safetensors file per rank.

    Args:
        model: Quantized or not.
        decoder_type: ModelOpt's name for the model family.
        output: Directory for the files.
        tp_size: Required, because ModelOpt's default of 0 causes a division by zero.
        pp_size: Rank ``pp * tp_size + tp`` is tensor rank ``tp`` of stage ``pp``.
    """
    _restore_rotary_settings(model.config)
    with torch.inference_mode():
        export_tensorrt_llm_checkpoint(
            model,
            decoder_type,
            _stored_type(model),
            output,
            inference_tensor_parallel=tp_size,
            inference_pipeline_parallel=pp_size,
        )


def _stored_type(model: Any) -> torch.dtype:
    """Return the type of what is not quantized; neither format has float32."""
    dtype: torch.dtype = next(model.parameters()).dtype
    return torch.float16 if dtype == torch.float32 else dtype


def _restore_rotary_settings(config: Any) -> None:
    """Copy rotary settings from transformers 5's place to where ModelOpt 0.47 expects them."""
    parameters = getattr(config, "rope_parameters", None)
    if parameters is None:  # transformers 4
        return
    scaling = {key: value for key, value in parameters.items() if key != "rope_theta"}
    has_scaling = scaling.get("rope_type", "default") != "default"
    config.__dict__.update(rope_theta=parameters["rope_theta"], rope_scaling=scaling if has_scaling else None)


def _forward_loop(pieces: torch.Tensor, started_s: float) -> Callable[[Any], None]:
    """Return the function that ModelOpt calls, possibly several times, to run the model on all samples."""
    passes = 0

    def run(model: Any) -> None:
        nonlocal passes
        passes += 1
        reported_s = time.monotonic()
        for begin in range(0, len(pieces), _BATCH_SIZE):
            with torch.no_grad():
                model(input_ids=pieces[begin : begin + _BATCH_SIZE].to(model.device), use_cache=False)
            done = min(begin + _BATCH_SIZE, len(pieces))
            if done == len(pieces) or time.monotonic() - reported_s > _REPORT_INTERVAL_S:
                reported_s = time.monotonic()
                _report(
                    f"calibration pass {passes}: {done * pieces.shape[1]:,} of {pieces.numel():,} tokens, "
                    f"{reported_s - started_s:.1f} s"
                )

    return run


def _report(text: str) -> None:
    print(f"{PROGRESS}{text}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
