"""Finish what ModelOpt's ``export_hf_checkpoint`` wrote, for TensorRT-LLM's PyTorch backend.

It is a Hugging Face directory whose projections are E4M3, with one scale for the matrix and one for its
inputs. ``hf_quant_config.json`` names the algorithm.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from build.checkpoints.settings import read_json
from build.hugging_face.quantized.form import Blocks
from build.hugging_face.quantized.fp8 import Fp8
from build.hugging_face.weights import Weights
from build.quantization.checks import Measured, relative_error, rotary_settings
from build.quantization.source import CheckpointSource, tensors_of

_TABLE, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_FORM = Fp8(Blocks(), has_input_scale=True)


def finish_export(output: Path, source: CheckpointSource) -> dict[str, Any]:
    """Complete an export with tokenizer and settings of its source.

    ModelOpt writes ``config.json`` as transformers 5 does, with ``rope_parameters`` alone. TensorRT-LLM
    1.3.0rc3 pins transformers 4.57 and takes the scaling of positions from ``rope_scaling``
    (``_torch/attention_backend/interface.py``, ``RopeParams``): without it, Llama's would be lost unnoticed.
    It computes in the type that ``torch_dtype`` names (``_torch/model_config.py``), and has no attention in
    float32, so it is told to round what ModelOpt leaves in float32.

    Args:
        output: Directory that ModelOpt wrote.
        source: The Hugging Face checkpoint.

    Returns:
        ``config.json``, and ``quantization`` as ``hf_quant_config.json`` has it.
    """
    exported = read_json(output / "config.json")
    for path in source.texts:
        shutil.copyfile(path, output / path.name)
    base, scaling = rotary_settings(source.config)
    changed = {key: exported[key] for key in ("quantization_config", "vocab_size", "tie_word_embeddings")}
    changed |= dict.fromkeys(("dtype", "torch_dtype"), exported["dtype"].replace("float32", "float16"))
    config = {**source.config, "rope_theta": base, "rope_scaling": scaling, **changed}
    (output / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return {**config, "quantization": read_json(output / "hf_quant_config.json")["quantization"]}


def compare_export(output: Path, source: CheckpointSource) -> Measured:
    """Compare each tensor of the source with the export's.

    Raises:
        CheckpointError: A tensor or scale is missing, or differs by more than rounding.
    """
    found, original, worst, where = Weights(output), tensors_of(source), 0.0, ""
    vocab_size = read_json(output / "config.json")["vocab_size"]
    if _HEAD in found:  # also if the source has one table for both, and its rows were padded
        original.setdefault(_HEAD, original[_TABLE])
    for name, tensor in original.items():
        projection, (rows, *columns) = name.removesuffix(".weight"), tensor.shape
        if not name.endswith("_proj.weight"):
            stored = found.take(name, tensor.shape, (vocab_size, *columns)).to_float32()[:rows]
            relative_error(output, name, stored, tensor.to_float32(), None)
            continue
        stored = _FORM.read(found, projection, rows, *columns)().stored_values()
        error = relative_error(output, projection, stored, tensor.to_float32(), "FP8")
        worst, where = max((worst, where), (error, projection))
    return Measured(worst, where, None)
