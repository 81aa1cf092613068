"""The same pair for TensorRT-LLM's LLM API, which compiles none: ``python -m build.llm_api --recipe R``.

TensorRT-LLM 1.3 and later have no ``trtllm-build``. There the PyTorch backend loads Hugging Face checkpoints
and speculates by itself. Two files are written: ``model.yaml`` of Triton's ``llmapi`` model, and the one
that ``trtllm-serve --config`` takes. Neither gives token ids, so proofs compare text there.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import yaml

from build.command_line import recipe_parser, run_command
from build.model_config import read_model_config
from build.recipe import REPOSITORY_ROOT, EngineRecipe, Recipe, load_recipe
from build.tensorrt_llm.versions import find_installation, release
from build.whole import write_whole
from pipelines.errors import RecipeError

_HEADER = """\
# Written by make llm-api for TensorRT-LLM {version}. {note}
# decoding_type is {decoding_type} here: DraftTarget until 1.1 and in early 1.2, Draft_Target later
# (llmapi/llm_args.py); if this version refuses it, it wants the other.
"""
# speculative_model_dir is the older name of speculative_model and its alias since; so it fits every version.
_DRAFT_KEY = "speculative_model_dir"


def decoding_type(version: str) -> str:
    """How a version spells speculation with a draft model.

    llm_args.py dispatches on ``DraftTarget`` in 1.0, 1.1 and early 1.2, and has ``Draft_Target`` as a literal
    in 1.3; which of them 1.2.1 has was not seen (UNCONFIRMED).
    """
    return "DraftTarget" if release(version) < (1, 2) else "Draft_Target"


def _model(recipe: Recipe, role: str) -> str:
    """The Hugging Face directory of one side.

    Raises:
        RecipeError: The recipe names a checkpoint of another form.
        CheckpointError: Its ``config.json`` cannot be read.
    """
    engine: EngineRecipe = getattr(recipe, role)
    if not read_model_config(engine.checkpoint_directory).is_hugging_face:
        raise RecipeError(
            f"the {role} of recipe {recipe.name} cannot be used by the LLM API",
            values=f"{role}.checkpoint={engine.checkpoint}, a TensorRT-LLM checkpoint",
            limit="its PyTorch backend loads Hugging Face directories",
            remedy="name the Hugging Face directory; ModelOpt's export_hf_checkpoint quantizes one",
        )
    return str(engine.checkpoint_directory)


def serve_settings(recipe: Recipe, version: str) -> dict[str, Any]:
    """What ``trtllm-serve --config`` takes; keys of ``TorchLlmArgs``.

    Raises:
        RecipeError, CheckpointError: A checkpoint is not Hugging Face's.
    """
    serving, section = recipe.serving, recipe.target.tensorrt_llm
    cache: dict[str, Any] = {"enable_block_reuse": True, "tokens_per_block": section.tokens_per_block}
    if section.kv_cache_dtype == "fp8":
        cache["dtype"] = "fp8"
    if section.kv_cache_free_gpu_mem_fraction is not None:
        cache["free_gpu_memory_fraction"] = section.kv_cache_free_gpu_mem_fraction
    return {
        "tensor_parallel_size": section.tp_size,
        "pipeline_parallel_size": section.pp_size,
        "max_batch_size": serving.max_batch_size,
        "max_num_tokens": max(serving.max_num_tokens, serving.max_seq_len),
        "max_seq_len": serving.max_seq_len,
        # Target and draft as two models cannot overlap (docs features/speculative-decoding.md @ea58e7cf).
        "disable_overlap_scheduler": True,
        "kv_cache_config": cache,
        "speculative_config": {
            "decoding_type": decoding_type(version),
            "max_draft_len": serving.num_draft_tokens or serving.max_draft_len,
            _DRAFT_KEY: _model(recipe, "draft"),
        },
    }


def triton_model(recipe: Recipe, version: str) -> dict[str, Any]:
    """``model.yaml`` of Triton's ``llmapi`` model: arguments of ``LLM()`` and ``triton_config``.

    Raises:
        RecipeError, CheckpointError: A checkpoint is not Hugging Face's.
    """
    return {
        "model": _model(recipe, "target"),
        "backend": "pytorch",
        **serve_settings(recipe, version),
        # max_batch_size 0: "The current implementation does not support batching" (its own model.yaml).
        "triton_config": {"max_batch_size": 0, "decoupled": True},
    }


def _note(recipe: Recipe) -> str:
    asked = {recipe.target.quantization, recipe.draft.quantization} - {"none", "checkpoint"}
    if not asked:
        return "Checkpoints as they are."
    return (
        f"The recipe's quantization ({', '.join(sorted(asked))}) is not made here:\n"
        "# the checkpoints are loaded as they are. Export them with ModelOpt's export_hf_checkpoint for FP8."
    )


def write_llm_api(recipe: Recipe, version: str, run: Path) -> list[Path]:
    """Write both files.

    Args:
        recipe: The pair.
        version: TensorRT-LLM's; decides a spelling.
        run: Gets ``<recipe>/llm_api/``.

    Returns:
        ``model.yaml`` and the file for ``trtllm-serve``.

    Raises:
        RecipeError, CheckpointError: A checkpoint is not Hugging Face's.
    """
    folder = run / recipe.name / "llm_api"
    header = _HEADER.format(version=version, note=_note(recipe), decoding_type=decoding_type(version))
    documents = {
        folder / "tensorrt_llm" / "1" / "model.yaml": triton_model(recipe, version),
        folder / "trtllm-serve.yaml": serve_settings(recipe, version),
    }
    for path, document in documents.items():
        write_whole(path, header + yaml.safe_dump(document, sort_keys=False))
    return list(documents)


def _render_and_tell(options: argparse.Namespace) -> dict[str, str]:
    recipe = load_recipe(options.recipe)
    found = find_installation()
    here = found.version if found is not None and found.version != "unknown" else None
    version = options.trtllm_version or here or recipe.tensorrt_llm.version
    model, serve = write_llm_api(recipe, version, options.run)
    print(f"Triton: copy NVIDIA's llmapi model and put {model} into it")
    print(f"trtllm-serve {_model(recipe, 'target')} --config {serve}")
    print("(older versions say --extra_llm_api_options for --config)")
    return {"recipe": recipe.name, "version": version, "model": str(model), "serve": str(serve)}


def main(arguments: list[str] | None = None) -> int:
    """Command line; the last line of standard output is JSON."""
    parser = recipe_parser("build.llm_api", "Render a pair for TensorRT-LLM's LLM API.")
    parser.add_argument("--trtllm-version", help="instead of the one found here, else the recipe's")
    parser.add_argument("--run", type=Path, default=REPOSITORY_ROOT / ".run", help="gets <recipe>/llm_api/")
    options = parser.parse_args(arguments)
    return run_command(lambda: _render_and_tell(options))


if __name__ == "__main__":
    sys.exit(main())
