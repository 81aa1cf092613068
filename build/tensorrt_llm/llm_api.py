"""Render a pair for TensorRT-LLM's LLM API, which needs no engines.

TensorRT-LLM 1.3 and later have no ``trtllm-build``: their PyTorch backend loads Hugging Face checkpoints and
speculates by itself. For each of NVIDIA's two servers there is a configuration and a script that starts it:
Triton with NVIDIA's ``llmapi`` model, and ``trtllm-serve``. Neither server returns token ids, so ``verify``
compares text. Neither has been run with these files; docs/how-to/nvidia-gpus.md tells what was checked
instead.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from build.checkpoints.settings import Settings, read_json
from build.hugging_face.head import is_head
from build.quantization.quantized_checkpoint import checkpoint_for
from build.recipe import EngineRecipe, Recipe
from build.tensorrt_llm.command import TOKENS_PER_BLOCK
from build.tensorrt_llm.model_config import read_model_config
from build.tensorrt_llm.versions import release
from pipelines.atomic_file import write_whole
from pipelines.errors import RecipeError

_VERSIONS = ((1, 3), (1, 4))  # whose sources were read
# 1.3.0rc3 was read. Which candidate after it has the literal is not known, but not many can lie between.
_EARLY_CANDIDATE = re.compile(r"1\.3\.0rc[0-3]")
# The older name of speculative_model, which is still an alias of it, so that every version accepts it.
_DRAFT_KEY = "speculative_model_dir"

# The transceiver, which moves keys and values between servers, is that of 1.4.0rc1 by name, so that another
# candidate changes nothing; without a backend there is none. By default, usage is reported to NVIDIA.
_SINCE_1_4: dict[str, Any] = {
    "cache_transceiver_config": {"transceiver_runtime": "PYTHON"},
    "telemetry_config": {"disabled": True},
}

_HEADER = """\
# Written by draftproof engines for TensorRT-LLM {version}, and not run yet.
"""

_TRTLLM_SERVE = """\
#!/bin/sh
# Serves OpenAI's API on port 8000 of this machine alone; options of trtllm-serve may follow. Not run yet.
exec trtllm-serve {target} --host 127.0.0.1 --extra_llm_api_options {settings} "$@"
"""

# NVIDIA's launch_triton_server.py passes --disable-auto-complete-config, which would hide triton_config from
# Triton: it would take the model for one that does not stream.
_TRITON = """\
#!/bin/sh
# Serves NVIDIA's llmapi model on this machine alone; options of tritonserver may follow. Not run yet.
# LLMAPI_MODELS is where the image has that model: NVIDIA's own build of TensorRT-LLM's Triton image has it in
# /app/tensorrt_llm/triton_backend/all_models/llmapi.
export LLM_CONFIG_PATH={model}
exec tritonserver --model-repository="${{LLMAPI_MODELS:-/app/all_models/llmapi}}" \\
  --http-address=127.0.0.1 --grpc-address=127.0.0.1 --metrics-address=127.0.0.1 "$@"
"""


def decoding_type(version: str) -> str:
    """Return how a version spells speculation with a draft model.

    Raises:
        RecipeError: The version is not one whose source was read.
    """
    if release(version) not in _VERSIONS:
        raise RecipeError(
            f"the LLM API of TensorRT-LLM {version} is not known; known: 1.3 and 1.4",
            "set tensorrt_llm.version to the nearest of them, and compare speculative_config with "
            "llmapi/llm_args.py of yours",
        )
    # What DecodingBaseConfig.from_dict looks up (llmapi/llm_args.py of 2025), and the literal that later
    # versions compare with (@00043967).
    return "DraftTarget" if _EARLY_CANDIDATE.fullmatch(version) else "Draft_Target"


def _model(recipe: Recipe, role: str) -> str:
    """Return the Hugging Face directory of a role.

    Raises:
        RecipeError: The recipe names a checkpoint in another format.
        CheckpointError: Its ``config.json`` cannot be read.
    """
    engine: EngineRecipe = getattr(recipe, role)
    if not read_model_config(engine.checkpoint_directory()).is_hugging_face:
        raise RecipeError(
            f"the LLM API cannot load the {role} of recipe {recipe.name}: {engine.checkpoint} is a "
            "TensorRT-LLM checkpoint",
            "use the Hugging Face directory; ModelOpt's export_hf_checkpoint writes a quantized one",
        )
    return str(engine.checkpoint_directory())


def serve_settings(recipe: Recipe, version: str) -> dict[str, Any]:
    """Return the configuration for ``trtllm-serve``, with the keys of ``TorchLlmArgs``.

    Raises:
        RecipeError, CheckpointError: A checkpoint is not in Hugging Face's format, or the version is not
            known, or it has no form of this draft.
    """
    serving, section = recipe.serving, recipe.target.tensorrt_llm
    cache: dict[str, Any] = {"enable_block_reuse": True, "tokens_per_block": TOKENS_PER_BLOCK}
    if section.kv_cache_dtype == "fp8":
        cache["dtype"] = "fp8"
    if section.kv_cache_free_gpu_mem_fraction is not None:
        cache["free_gpu_memory_fraction"] = section.kv_cache_free_gpu_mem_fraction
    is_new = release(version) >= (1, 4)
    if is_new:
        cache["use_kv_cache_manager_v2"] = True  # the default since 1.4.0rc1 (PR #17495)
    speculation = speculative_config(recipe, version)
    return {
        "tensor_parallel_size": section.tp_size,
        "pipeline_parallel_size": section.pp_size,
        "max_batch_size": serving.max_batch_size,
        "max_num_tokens": max(serving.max_num_tokens, serving.max_seq_len),
        "max_seq_len": serving.max_seq_len,
        # Speculation with two models does not overlap (docs features/speculative-decoding.md @ea58e7cf), and
        # the guide still has it where draft and target share one engine. Other drafts do without it there.
        "disable_overlap_scheduler": speculation["decoding_type"] == decoding_type(version),
        "kv_cache_config": cache,
        **(_SINCE_1_4 if is_new else {}),
        "speculative_config": speculation,  # last: the control's settings are those before it
    }


def speculative_config(recipe: Recipe, version: str) -> dict[str, Any]:
    """Return the section of the draft, which follows from its ``config.json``.

    A trained head is served as EAGLE-3, a draft with a mask token (PARD, arXiv:2504.18583) proposes all its
    tokens in one pass, and every other network proposes one after the other.

    Raises:
        RecipeError: The version, or its form of this draft, is not known; or a tree is asked for that this
            draft cannot grow.
        CheckpointError: The draft's ``config.json`` cannot be read.
    """
    draft, spelling = Path(_model(recipe, "draft")), decoding_type(version)
    raw, length = read_json(draft / "config.json"), recipe.serving.num_draft_tokens
    length = length or recipe.serving.max_draft_len
    special: dict[str, Any] = {}
    if is_head(raw):
        spelling, special = "Eagle3", _tree(recipe.tensorrt_llm.draft_tree_top_k, length)
    elif "pard_token" in raw:
        mask = Settings(raw, draft / "config.json").integer("pard_token")
        spelling, special = "PARD", {"mask_token_id": mask}
    if special and release(version) < (1, 4):
        raise RecipeError(
            f"the form of {spelling} drafts in TensorRT-LLM {version} is not known; known: 1.4",
            "set tensorrt_llm.version: 1.4.0rc1, with its container",
        )
    if spelling != "Eagle3" and recipe.tensorrt_llm.draft_tree_top_k > 1:
        raise RecipeError(
            f"only a trained head grows a tree: tensorrt_llm.draft_tree_top_k="
            f"{recipe.tensorrt_llm.draft_tree_top_k}, and the draft is served as {spelling}",
            "remove it, or use a head (EAGLE-3) as draft",
        )
    return {
        "decoding_type": spelling,
        "max_draft_len": length,
        _DRAFT_KEY: str(draft),
        **special,
        **_sampling(version),
    }


def _tree(top_k: int, length: int) -> dict[str, Any]:
    """Return the shape of an EAGLE-3 draft: a chain, or a tree that may grow to as many tokens as it can."""
    if top_k == 1:
        return {"use_dynamic_tree": False}
    return {
        "use_dynamic_tree": True,
        "dynamic_tree_max_topK": top_k,
        "max_total_draft_tokens": top_k * length,
    }


def _sampling(version: str) -> dict[str, bool]:
    """Return the switches without which a request with a draft is answered as if it had asked for less."""
    if release(version) >= (1, 4):
        # Without it penalties are refused (NVIDIA/TensorRT-LLM#17701, August 2026).
        return {"enable_penalty": True}
    # "If true, allows non-greedy sampling when speculation is used" (llm_args.py of 1.3.0rc3). The schema of
    # 1.4 calls it a deprecated no-op: each request decides.
    return {"allow_advanced_sampling": True}


def triton_model(recipe: Recipe, version: str) -> dict[str, Any]:
    """Return ``model.yaml`` for Triton's ``llmapi`` model: arguments of ``LLM()`` and ``triton_config``.

    Raises:
        RecipeError, CheckpointError: See ``serve_settings``.
    """
    return {
        "model": _model(recipe, "target"),
        "backend": "pytorch",
        **serve_settings(recipe, version),
        # max_batch_size 0: "The current implementation does not support batching" (its own model.yaml
        # @0ebb1536). Without decoupled, the model refuses to stream (its model.py @044a90d2).
        "triton_config": {"max_batch_size": 0, "decoupled": True},
    }


def check_loadable(recipe: Recipe, engines: Path) -> Recipe:
    """Check that a recipe says what exactly is served, and how.

    Returns:
        The recipe of what is served: with ``draftproof quantize``'s checkpoints in place of their sources.

    Raises:
        RecipeError: The container has no digest, the backend does not have a quantization, or a checkpoint is
            not in Hugging Face's format.
        CheckpointError: The ``config.json`` of a checkpoint cannot be read, or ``draftproof quantize`` has
            not been run.
    """
    container = recipe.tensorrt_llm.container
    if "@sha256:" not in container:
        raise RecipeError(
            f"a bundle needs its container by digest, because tags move: tensorrt_llm.container={container}",
            "write NAME@sha256:DIGEST; docker inspect --format '{{index .RepoDigests 0}}' IMAGE prints it",
        )
    for role in ("draft", "target"):
        checkpoint = checkpoint_for(recipe, role, engines)
        served = replace(getattr(recipe, role), checkpoint=str(checkpoint), quantization="checkpoint")
        recipe = replace(recipe, **{role: served})
        _model(recipe, role)
    return recipe


def exported_quantization(directory: Path) -> str:
    """Return how a checkpoint is quantized.

    Returns:
        The algorithm that ModelOpt's ``export_hf_checkpoint`` names, such as FP8; else ``quant_method`` of
        ``config.json``, such as awq; ``none`` without either.

    Raises:
        CheckpointError: A file cannot be read, or names no quantization where it must.
    """
    path, part, key = directory / "hf_quant_config.json", "quantization", "quant_algo"
    if not path.is_file():
        path, part, key = directory / "config.json", "quantization_config", "quant_method"
    whole = Settings(read_json(path), path)
    section = whole.part(part) or (whole.part("text_config") or whole).part(part)
    if section is None and key == "quant_method":
        return "none"
    name = section.get(key, "none") if section is not None and key in section.names else None
    if not isinstance(name, str):
        raise whole.fail(f"{part}.{key} must be a text", "export the checkpoint again")
    return name


def llm_api_files(recipe: Recipe, version: str, run: Path) -> dict[str, tuple[Path, str]]:
    """Render what ``write_llm_api`` writes; arguments and errors are the same.

    Returns:
        Path and content of ``model``, ``triton``, ``settings`` and ``serve``.
    """
    folder = (run / recipe.name / "llm_api").resolve()
    paths = {
        "model": folder / "model.yaml",
        "triton": folder / "triton.sh",
        "settings": folder / "trtllm-serve.yaml",
        "serve": folder / "trtllm-serve.sh",
    }
    header = _HEADER.format(version=version)
    quoted = {name: shlex.quote(str(path)) for name, path in paths.items()}
    target = shlex.quote(_model(recipe, "target"))
    texts = {
        "model": header + yaml.safe_dump(triton_model(recipe, version), sort_keys=False),
        "triton": _TRITON.format(model=quoted["model"]),
        "settings": header + yaml.safe_dump(serve_settings(recipe, version), sort_keys=False),
        "serve": _TRTLLM_SERVE.format(target=target, settings=quoted["settings"]),
    }
    return {name: (path, texts[name]) for name, path in paths.items()}


def write_llm_api(recipe: Recipe, version: str, run: Path) -> dict[str, Path]:
    """Write the configuration of both servers and the scripts that start them.

    Args:
        recipe: The pair.
        version: Version of TensorRT-LLM, which decides how ``decoding_type`` is spelled.
        run: Folder in which ``<recipe>/llm_api/`` is created.

    Returns:
        Paths of ``model``, ``triton``, ``settings`` and ``serve``: the two files for Triton, then the two for
        ``trtllm-serve``.

    Raises:
        RecipeError, CheckpointError: A checkpoint is not in Hugging Face's format, or the version is not
            known.
    """
    files = llm_api_files(recipe, version, run)
    for path, text in files.values():
        write_whole(path, text)
    return {name: path for name, (path, _) in files.items()}
