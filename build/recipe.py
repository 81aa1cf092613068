"""Recipes: one YAML file per draft/target pair, parsed strictly into frozen dataclasses.

One recipe serves both runtimes. What they share (checkpoints, quantization, limits of the server) stands
in the sections below; what only TensorRT-LLM has stands in sections named ``tensorrt_llm``, and the
embedded runtime reads none of them.
"""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from build.gpus import GPUS
from build.strict_section import choice, parse_section, refuse, whole
from pipelines.errors import RecipeError

REPOSITORY_ROOT = Path(__file__).resolve().parents[1]
RECIPES = Path(__file__).resolve().parent / "recipes"
RUNTIMES = ("embedded", "tensorrt_llm")
QUANTIZATIONS = ("none", "int8", "checkpoint", "fp8", "int8_sq", "int4_awq", "w4a8_awq")


@dataclass(frozen=True)
class Growth:
    """Sizes that a network is grown to without changing its function (``build/growth.py``)."""

    hidden_size: int
    num_layers: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    seed: int = whole(0, default=0)


@dataclass(frozen=True)
class KvCache:
    """The embedded runtime's paged cache of keys and values.

    Attributes:
        dtype: ``float32`` or ``float16``; part of the engine.
        num_blocks: Blocks of 32 tokens that a server allocates; not part of the engine.
    """

    dtype: str = choice("float32", "float16", default="float32")
    num_blocks: int = whole(2, default=1024)


@dataclass(frozen=True)
class TensorRtLlmEngine:
    """What only TensorRT-LLM has of one engine; names are those of its flags and parameters.

    Attributes:
        tp_size: GPUs that share each layer.
        pp_size: Groups of GPUs that share the layers.
        gpu_device_ids: GPUs of one node that it runs on; None: the first ``tp_size * pp_size``.
        kv_cache_dtype: ``model``: that of the activations. ``fp8``. ``int8`` exists and is refused by
            the pre-flight: the builder then switches off what a target cannot be without.
        kv_cache_free_gpu_mem_fraction: Share of the memory that is free when the engine has loaded;
            None: as the memory plan works it out.
        max_input_len: Longest prompt, tokens; None: ``serving.max_seq_len`` less one.
        tokens_per_block: Of the KV cache; a power of two.
        gemm_plugin: ``auto`` or ``disable``; None: ``disable`` for FP8 weights, else ``auto``.
        low_latency_gemm: FP8 matrix products for few rows; FP8 weights only.
        gemm_swiglu: Gate and up projection as one FP8 product, with one scale less; FP8 weights and
            Hopper only.
        reduce_fusion: All-reduce fused with the norm behind it; needs ``tp_size`` above 1.
        multiple_profiles: More kernels to choose from; text may then depend on the load.
    """

    tp_size: int = 1
    pp_size: int = 1
    gpu_device_ids: tuple[int, ...] | None = None
    kv_cache_dtype: str = choice("model", "fp8", "int8", default="model")
    kv_cache_free_gpu_mem_fraction: float | None = None
    max_input_len: int | None = None
    tokens_per_block: int = 32
    gemm_plugin: str | None = choice("auto", "disable", default=None)
    low_latency_gemm: bool = False
    gemm_swiglu: bool = False
    reduce_fusion: bool = False
    multiple_profiles: bool = False

    @property
    def world_size(self) -> int:
        """GPUs, and so ranks, of the engine."""
        return self.tp_size * self.pp_size


@dataclass(frozen=True)
class EngineRecipe:
    """How one of the two engines is made.

    Attributes:
        checkpoint: Directory of a checkpoint, relative to the repository root unless absolute; Hugging
            Face's form or TensorRT-LLM's.
        quantization: ``int8``: weight-only, per channel. ``fp8``, ``int8_sq`` (SmoothQuant),
            ``int4_awq``, ``w4a8_awq``: by calibration (``build/quantize.py``). ``checkpoint``: whatever
            the checkpoint holds. ``none``: floating point.
        lm_head: ``int8`` or ``checkpoint``; embedded only. Exporters leave the output head unquantized,
            yet it is read whole at every step; making it INT8 departs from the checkpoint, so the recipe
            has to say it.
        num_threads: Threads of one step; embedded only.
        thread_placement: ``pinned`` to processors, or ``free`` for the operating system to move; embedded
            only. Which is faster depends on what else runs; ``make tune`` measures it.
        kv_cache: Cache of keys and values; embedded only.
        growth: Sizes to grow to, or None; embedded only.
        pad_vocab_size_to: Rows that embedding and output head are filled up to when the checkpoint is
            quantized, or None; for a draft whose vocabulary is padded less than the target's.
        tensorrt_llm: What only TensorRT-LLM has.
    """

    checkpoint: str
    quantization: str = choice(*QUANTIZATIONS, default="int8")
    lm_head: str = choice("int8", "checkpoint", default="checkpoint")
    num_threads: int = 2
    thread_placement: str = choice("pinned", "free", default="pinned")
    kv_cache: KvCache = KvCache()
    growth: Growth | None = None
    pad_vocab_size_to: int | None = None
    tensorrt_llm: TensorRtLlmEngine = TensorRtLlmEngine()

    @property
    def checkpoint_directory(self) -> Path:
        """The checkpoint's absolute path."""
        return REPOSITORY_ROOT / self.checkpoint


@dataclass(frozen=True)
class Serving:
    """Limits of the server.

    Attributes:
        max_batch_size: Requests that run at once.
        max_num_tokens: Tokens of one step at most.
        max_seq_len: Prompt and answer together, tokens.
        max_queue_size: Requests that may wait.
        max_draft_len: Most draft tokens of a round.
        num_draft_tokens: Draft tokens of a round where a request does not say; 0 for no speculation, None
            to follow acceptance and load.
        engine_access: ``in_process``: the loop holds both engines. ``bls``: it calls models of the server.
            Embedded only: TensorRT-LLM's engines are models of the server.
    """

    max_batch_size: int = 16
    max_num_tokens: int = whole(4, default=512)
    max_seq_len: int = whole(2, default=1024)
    max_queue_size: int = 64
    max_draft_len: int = 8
    num_draft_tokens: int | None = whole(
        0, default=None, remedy="leave it out to draft as many as pay, or give a number; 0 drafts none"
    )
    engine_access: str = choice("in_process", "bls", default="in_process")


@dataclass(frozen=True)
class Calibration:
    """Text that activation scales are measured on.

    Attributes:
        text: A text file, or None for the one that comes with Draftproof.
        num_samples: Pieces of it.
        seq_len: Tokens of a piece.
    """

    text: str | None = None
    num_samples: int = 512
    seq_len: int = 512


@dataclass(frozen=True)
class TensorRtLlm:
    """What only TensorRT-LLM has of a pair.

    Attributes:
        gpu: What the engines are built for, ``build/gpus.py``.
        version: TensorRT-LLM's; engines of one version run under no other.
        container: Image that builds and serves; holds that version.
        max_num_tokens: Tokens of one step at most; None: what the longest round and the largest batch need,
            and at least ``serving.max_num_tokens``. Prompts are not cut into chunks here.
        num_nodes: Machines that the target's ranks are spread over.
        mode: ``orchestrator``: the server starts a worker process per rank. ``leader``: MPI started them
            all, one engine per server.
        fast_logits: Draft logits go to the target from GPU to GPU; needs the orchestrator with ranks that
            MPI started.
        batch_scheduler_policy: ``guaranteed_no_evict`` or ``max_utilization``.
        calibration: Text for the scales.
    """

    gpu: str = choice(*GPUS, default="h100-80gb")
    version: str = "1.2.1"
    container: str = "nvcr.io/nvidia/tritonserver:26.04-trtllm-python-py3"
    max_num_tokens: int | None = None
    num_nodes: int = 1
    mode: str = choice("orchestrator", "leader", default="orchestrator")
    fast_logits: bool = False
    batch_scheduler_policy: str = choice(
        "guaranteed_no_evict", "max_utilization", default="guaranteed_no_evict"
    )
    calibration: Calibration = Calibration()


@dataclass(frozen=True)
class Recipe:
    """A draft/target pair: how both engines are made and how they are served.

    Attributes:
        name: Also the name of the folder under ``engines/`` and ``.run/``.
        runtime: ``embedded``, the runtime of machines without a GPU, or ``tensorrt_llm``; what a command
            builds if it is not told otherwise.
        path: The YAML file.
        tensorrt_llm: What only TensorRT-LLM has.
    """

    name: str
    target: EngineRecipe
    draft: EngineRecipe
    serving: Serving
    path: Path
    runtime: str = choice(*RUNTIMES, default="embedded")
    tensorrt_llm: TensorRtLlm = TensorRtLlm()


def parse_recipe(raw: Any, path: Path) -> Recipe:
    """Check a parsed YAML document.

    Args:
        raw: What the YAML parser gave.
        path: The file, for error messages.

    Raises:
        RecipeError: A key is unknown, missing, or has a value of the wrong type or range.
    """
    recipe = parse_section(path, Recipe, raw, given={"path": path})
    serving = recipe.serving
    if not recipe.name.replace("-", "").replace("_", "").isalnum():
        raise refuse(path, "a value is out of range", f"name={recipe.name!r}", "letters, digits, - and _")
    if (serving.num_draft_tokens or 0) > serving.max_draft_len:
        raise refuse(
            path,
            "serving.num_draft_tokens is too large",
            f"num_draft_tokens={serving.num_draft_tokens}",
            f"max_draft_len={serving.max_draft_len}",
        )
    if serving.max_draft_len >= serving.max_seq_len:
        raise refuse(
            path,
            "serving.max_draft_len is too large",
            f"max_draft_len={serving.max_draft_len}",
            f"below max_seq_len={serving.max_seq_len}",
        )
    # A verification of one request is max_draft_len + 1 rows and has to fit into one step.
    if serving.max_draft_len + 1 > serving.max_num_tokens:
        raise refuse(
            path,
            "serving.max_num_tokens is too small",
            f"max_num_tokens={serving.max_num_tokens}",
            f"at least max_draft_len + 1 = {serving.max_draft_len + 1}",
        )
    for role, engine in (("target", recipe.target), ("draft", recipe.draft)):
        capacity = 32 * (engine.kv_cache.num_blocks - 1)  # one block is scratch
        if capacity < serving.max_seq_len:
            raise refuse(
                path,
                f"{role}.kv_cache.num_blocks is too small for one request",
                f"num_blocks={engine.kv_cache.num_blocks}, room for {capacity} tokens",
                f"max_seq_len={serving.max_seq_len}",
                "raise num_blocks or lower max_seq_len",
            )
    return recipe


def load_recipe(name_or_path: str | Path, runtime: str | None = None) -> Recipe:
    """Read a recipe by name (``demo``) or by the path of its YAML file.

    ``<name>-<gpu>``, such as ``qwen2-5-32b-fp8-h200-141gb``, is the recipe ``<name>`` for another GPU, unless
    there is a file of that name.

    Args:
        name_or_path: Which.
        runtime: One of ``RUNTIMES``, in place of the one that the file names.

    Raises:
        RecipeError: There is no such recipe, or it is not valid.
    """
    text = str(name_or_path)
    is_path = text.endswith((".yaml", ".yml")) or "/" in text
    path = Path(text) if is_path else RECIPES / f"{text}.yaml"
    gpu = next((gpu for gpu in GPUS if not is_path and text.endswith(f"-{gpu}")), None)
    if gpu is not None and not path.is_file():
        path = path.with_stem(text.removesuffix(f"-{gpu}"))
    else:
        gpu = None
    if not path.is_file():
        known = sorted(recipe.stem for recipe in RECIPES.glob("*.yaml"))
        near = difflib.get_close_matches(text, known, 1)
        raise RecipeError(
            f"there is no recipe {text}",
            values=f"looked for {path}",
            limit=f"known recipes: {', '.join(known)}",
            remedy=f"did you mean {near[0]}?" if near else "give a known name or the path of a YAML file",
        )
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RecipeError(
            f"{path} is not valid YAML",
            values=" ".join(str(error).split()),
            limit="a recipe is one YAML mapping",
            remedy="correct the file; build/recipes/demo.yaml is an example",
        ) from None
    recipe = parse_recipe(raw, path)
    if gpu is not None:
        section = dataclasses.replace(recipe.tensorrt_llm, gpu=gpu)
        recipe = dataclasses.replace(recipe, name=f"{recipe.name}-{gpu}", tensorrt_llm=section)
    return recipe if runtime is None else dataclasses.replace(recipe, runtime=runtime)
