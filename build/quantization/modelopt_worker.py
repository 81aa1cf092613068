"""Runs ModelOpt in a process of its own: ``python -m build.quantization.modelopt_worker ORDER.json``.

The order is what ``build/quantize.py`` writes: ``source`` (a Hugging Face directory), ``decoder_type``,
``quantization``, ``kv_cache_dtype``, ``tp_size``, ``pp_size``, ``pad_vocab_size_to``, ``pieces`` (an .npy
file, int32 [n, length], or null) and ``output``. Lines that begin with ``PROGRESS`` are for the user; what
else is printed, by the libraries too, is a log. One model is exported once: an export may change the model.
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
from modelopt.torch.export import export_tensorrt_llm_checkpoint
from transformers import AutoModelForCausalLM

PROGRESS = "progress: "
_CONFIGS = {
    "fp8": mtq.FP8_DEFAULT_CFG,
    "int8_sq": mtq.INT8_SMOOTHQUANT_CFG,
    "int4_awq": mtq.INT4_AWQ_CFG,
    "w4a8_awq": mtq.W4A8_AWQ_BETA_CFG,
}
_PIECES_AT_ONCE = 4
_SECONDS_BETWEEN_REPORTS = 5.0


def main(arguments: list[str]) -> int:
    """Carry out one order."""
    order = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    started_s = time.monotonic()
    model = load_model(Path(order["source"]))
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    _report(f"{num_parameters / 1e6:.1f} M parameters loaded, {time.monotonic() - started_s:.1f} s")
    if order["pad_vocab_size_to"] is not None:
        pad_vocabulary(model, order["pad_vocab_size_to"])
    if order["pieces"] is not None:
        pieces = torch.from_numpy(np.load(order["pieces"]).astype(np.int64))
        model = mtq.quantize(
            model,
            quantization_config(order["quantization"], order["kv_cache_dtype"]),
            _forward_loop(pieces, started_s),
        )
    export(model, order["decoder_type"], Path(order["output"]), order["tp_size"], order["pp_size"])
    _report(f"exported, {time.monotonic() - started_s:.1f} s")
    return 0


def load_model(directory: Path) -> Any:
    """A causal language model in the type of its checkpoint, on the GPUs if there are any."""
    placement = {"device_map": "auto"} if torch.cuda.is_available() else {}
    model = AutoModelForCausalLM.from_pretrained(directory, dtype="auto", local_files_only=True, **placement)
    model.eval()
    return model


def pad_vocabulary(model: Any, vocab_size: int) -> None:
    """Fill embedding and output head up with rows that are never asked for and never win.

    Zeros in the embedding. In the head the mean of its rows, whose logit is the mean of all logits and so
    at most the largest (decision 0018).
    """
    table, head = model.get_input_embeddings(), model.get_output_embeddings()
    num_new = vocab_size - table.weight.shape[0]
    mean = head.weight.float().mean(dim=0, keepdim=True).to(head.weight.dtype)
    rows = torch.cat([head.weight, mean.expand(num_new, -1)])
    table.weight = torch.nn.Parameter(torch.cat([table.weight, torch.zeros_like(rows[:num_new])]))
    head.weight = torch.nn.Parameter(rows)
    table.num_embeddings = head.out_features = model.config.vocab_size = vocab_size
    model.config.tie_word_embeddings = False


def quantization_config(quantization: str, kv_cache_dtype: str) -> Any:
    """ModelOpt's configuration; heads and embeddings stay floating point in all of them."""
    config: Any = _CONFIGS[quantization]
    if kv_cache_dtype == "fp8":
        config = mtq.update_quant_cfg_with_kv_cache_quant(config, mtq.FP8_KV_CFG["quant_cfg"])
    return config


def export(model: Any, decoder_type: str, output: Path, tp_size: int, pp_size: int) -> None:
    """Write ``config.json`` and one safetensors file per rank.

    Args:
        model: Quantized or not.
        decoder_type: ModelOpt's name of the family.
        output: Gets the files.
        tp_size: Must be given: ModelOpt's default of 0 ends in a division by zero.
        pp_size: Ranks are numbered ``pp * tp_size + tp``.
    """
    _restore_rotary_settings(model.config)
    dtype = next(model.parameters()).dtype
    with torch.inference_mode():
        export_tensorrt_llm_checkpoint(
            model,
            decoder_type,
            torch.float16 if dtype == torch.float32 else dtype,  # the format has no float32
            output,
            inference_tensor_parallel=tp_size,
            inference_pipeline_parallel=pp_size,
        )


def _restore_rotary_settings(config: Any) -> None:
    """Transformers 5 keeps them where ModelOpt 0.47 does not look: the export would silently lack them."""
    parameters = getattr(config, "rope_parameters", None)
    if parameters is None:  # transformers 4
        return
    scaling = {key: value for key, value in parameters.items() if key != "rope_theta"}
    has_scaling = scaling.get("rope_type", "default") != "default"
    config.__dict__.update(rope_theta=parameters["rope_theta"], rope_scaling=scaling if has_scaling else None)


def _forward_loop(pieces: torch.Tensor, started_s: float) -> Callable[[Any], None]:
    """What ModelOpt calls, once or several times, to see activations."""
    passes = 0

    def run(model: Any) -> None:
        nonlocal passes
        passes += 1
        reported_s = time.monotonic()
        for begin in range(0, len(pieces), _PIECES_AT_ONCE):
            with torch.no_grad():
                model(input_ids=pieces[begin : begin + _PIECES_AT_ONCE].to(model.device), use_cache=False)
            done = min(begin + _PIECES_AT_ONCE, len(pieces))
            if done == len(pieces) or time.monotonic() - reported_s > _SECONDS_BETWEEN_REPORTS:
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
