"""Recipes: one YAML file per draft/target pair, parsed strictly into frozen dataclasses.

A recipe applies to both runtimes. Settings that only TensorRT-LLM has are in sections named ``tensorrt_llm``,
which the embedded runtime ignores; ``embedded only`` marks settings that TensorRT-LLM ignores.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from build.hub.checkpoint_id import HubCheckpoint
from build.tensorrt_llm.settings import GPUS, TensorRtLlm, TensorRtLlmEngine, Text
from pipelines import configuration
from pipelines.errors import InvalidRequestError, RecipeError
from pipelines.places import CACHE, CODE, located
from pipelines.speculation.sampling.params import check_ranges
from pipelines.wire.request import CompletionRequest

RECIPES = CODE / "build" / "recipes"
TRANSLATED = Path(os.environ.get("DRAFTPROOF_CACHE") or CACHE) / "gguf"
GGUF_SUFFIX = ".gguf"

Runtime = Literal["embedded", "tensorrt_llm"]
RUNTIMES = get_args(Runtime)
Quantization = Literal["auto", "none", "int8", "int4", "checkpoint", "fp8", "int8_sq", "int4_awq", "w4a8_awq"]

_REMEDY = "correct the recipe; docs/reference/recipe.md explains its keys"

AtLeastTwo = Annotated[int, Field(ge=2)]


@dataclass(frozen=True)
class Growth:
    """Sizes that a network is grown to without changing its function (``build/networks/growth.py``).

    Attributes:
        num_layers: Layers of the grown network.
        intermediate_size: Width of the grown feed-forward layers.
    """

    num_layers: PositiveInt
    intermediate_size: PositiveInt


@dataclass(frozen=True)
class KvCache:
    """The embedded runtime's paged KV cache.

    Attributes:
        dtype: ``float32``, ``float16`` or ``int8``, which has a scale for each token and head; part of the
            engine.
        num_blocks: Blocks of 32 tokens that a server allocates, not part of the engine; None: enough for
            ``max_batch_size`` requests of ``max_seq_len`` tokens, or what the memory holds.
    """

    dtype: Literal["float32", "float16", "int8"] = "float16"
    num_blocks: AtLeastTwo | None = None


@dataclass(frozen=True)
class EngineRecipe:
    """Settings for building one of the two engines.

    Attributes:
        checkpoint: Directory or GGUF file, absolute or relative to the checkout or home; or on the Hugging
            Face hub ``hf://ORGANIZATION/NAME@REVISION``, or ``hf://ORGANIZATION/NAME:FILE@REVISION`` for a
            GGUF file, by its name or quantization. A draft may be a trained head (EAGLE-3).
        quantization: ``auto``: the integers that a checkpoint has, of 8 bits at most, unchanged, and ``int8``
            for floating point; embedded only. ``int8``: weight-only, per channel. ``int4``: weight-only, in
            groups of 32 inputs; embedded only. Both keep integers that a checkpoint has already, if they are
            as small. ``fp8``, ``int8_sq`` (SmoothQuant), ``int4_awq``, ``w4a8_awq``: with calibration.
            ``checkpoint``: that of the checkpoint. ``none``: floating point.
        lm_head: Quantization of the output head; embedded only. Integers make it faster, but deviate from the
            checkpoint; 4 bits suit a draft.
        lm_head_rows: Tokens that a draft may propose beside special ones: the first of the vocabulary, which
            are the most frequent ones; None for all; embedded only.
        num_threads: Threads of one step; None: as many as the machine that builds the engine has cores;
            embedded only.
        thread_placement: ``pinned`` to cores, or ``free`` for the operating system to move; embedded only.
        attention: ``openvino``, or ``draftproof``: an operator of our own, which is faster with long contexts
            and which some families need. It is compiled with g++ when the engine is built; embedded only.
        linear: What multiplies integer weights: ``openvino``; ``draftproof``, an operator of our own for
            processors with AVX2 alone, compiled with g++; or ``auto``, ours on such a processor if there is
            g++; embedded only.
        kv_cache: KV cache; embedded only.
        growth: Sizes to grow to, or None; embedded only.
        pad_vocab_size_to: Rows that ModelOpt's quantization pads embedding and output head to, or None; for a
            draft whose vocabulary has less padding than the target's.
        tensorrt_llm: Settings that only TensorRT-LLM has.
    """

    checkpoint: Text
    quantization: Quantization = "int8"
    lm_head: Literal["int8", "int4", "checkpoint"] = "checkpoint"
    lm_head_rows: PositiveInt | None = None
    num_threads: PositiveInt | None = None
    thread_placement: Literal["pinned", "free"] = "pinned"
    attention: Literal["openvino", "draftproof"] = "openvino"
    linear: Literal["auto", "openvino", "draftproof"] = "auto"
    kv_cache: KvCache = KvCache()
    growth: Growth | None = None
    pad_vocab_size_to: PositiveInt | None = None
    tensorrt_llm: TensorRtLlmEngine = dataclasses.field(default_factory=TensorRtLlmEngine)

    @property
    def rounding(self) -> str:
        """Return ``quantization``; for ``auto`` INT8, which keeps integers that are as small."""
        return "int8" if self.quantization == "auto" else self.quantization

    def checkpoint_directory(self) -> Path:
        """Return the directory of the checkpoint; a GGUF file is translated into one first.

        Raises:
            CheckpointError: It has to be downloaded first, or the GGUF file cannot be used.
        """
        on_hub = HubCheckpoint.parse(self.checkpoint)
        path = located(self.checkpoint) if on_hub is None else on_hub.directory
        if path.suffix != GGUF_SUFFIX:
            return path
        from build.gguf.translate import translate  # which needs recipes itself

        return translate(path, TRANSLATED)


@configuration.strict
@dataclass(frozen=True)
class DefaultSampling:
    """Sampling parameters of requests to OpenAI's API that send none.

    Attributes:
        temperature: Of requests to OpenAI's API that send none, at least 0; 0 is greedy. None: what the
            checkpoint's ``generation_config.json`` recommends, else 1. An option of ``draftproof serve``
            comes before the recipe, here and in the next four.
        top_p: The same, above 0, to 1.
        top_k: The same; 0 keeps all tokens.
        min_p: The same, 0 to 1.
        repetition_penalty: The same, above 0. It changes greedy answers, too.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None

    @property
    def values(self) -> dict[str, Any]:
        """Return those that are set, by name."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}

    @classmethod
    def of_option(cls, text: str) -> DefaultSampling:
        """Parse an option such as ``temperature=0.7,top_k=20``.

        Raises:
            RecipeError: A name is unknown, or a value has the wrong type or range.
        """
        pairs = (part.partition("=") for part in text.split(",") if part)
        raw = {name.strip(): _number(value) for name, _, value in pairs}
        remedy = "write --default-sampling temperature=0.7,top_k=20"
        parsed = configuration.parse(cls, raw, RecipeError, remedy)
        parsed.check()
        return parsed

    def check(self) -> None:
        """Refuse what a request may not send.

        Raises:
            RecipeError: A value is outside its range.
        """
        try:
            check_ranges(self.values)
            CompletionRequest(**self.values).check()
        except InvalidRequestError as error:
            raise RecipeError(error.message, error.remedy) from None


def _number(text: str) -> float | str:
    """Return the number that a text says; other texts, which the parser refuses, as they are."""
    try:
        return int(text)
    except ValueError:
        with suppress(ValueError):
            return float(text)
    return text


@dataclass(frozen=True)
class Serving:
    """Limits of the server.

    Attributes:
        max_batch_size: Requests that run concurrently.
        max_num_tokens: Tokens in one step, at most.
        max_seq_len: Tokens of prompt and answer together, at most.
        max_queue_size: Requests that may wait.
        max_draft_len: Draft tokens in one round, at most.
        num_draft_tokens: Draft tokens per round of requests that do not set them; 0 switches speculation off.
            None adapts to acceptance rate and load on the embedded runtime, and is ``max_draft_len`` on
            TensorRT-LLM.
        prompt_cache_dir: Folder that keeps what prompts have computed, also when the server ends; servers
            may share it. None: ``prompt_cache`` in the server's run directory. Embedded only.
        prompt_cache_gb: Its most gigabytes; 0 keeps nothing. None: a tenth of the free disk, at most 20.
            Embedded only.
        default_sampling: Sampling parameters of requests that send none.
    """

    max_batch_size: PositiveInt = 16
    max_num_tokens: Annotated[int, Field(ge=4)] = 512
    max_seq_len: AtLeastTwo = 1024
    max_queue_size: PositiveInt = 64
    max_draft_len: PositiveInt = 8
    num_draft_tokens: NonNegativeInt | None = None
    prompt_cache_dir: Text | None = None
    prompt_cache_gb: NonNegativeFloat | None = None
    default_sampling: DefaultSampling = DefaultSampling()


@configuration.strict
@dataclass(frozen=True)
class Recipe:
    """A draft/target pair: how both engines are built and served.

    Attributes:
        name: Name of the recipe, and of its folders under ``engines/`` and ``.run/``.
        target: The target.
        draft: The draft. None: draft tokens are only looked up; embedded only.
        runtime: Default runtime: ``embedded``, which needs no GPU, or ``tensorrt_llm``.
        prompts: File of prompts, ``*.jsonl`` (texts, or chat messages for a target with a chat template) or
            ``*.txt``, or folder of such files, for verification and benchmarks; relative to the recipe's own
            file. None: general prompts.
        tensorrt_llm: Settings that only TensorRT-LLM has.
        path: The YAML file.
    """

    name: Text
    target: EngineRecipe
    serving: Serving
    draft: EngineRecipe | None = None
    runtime: Runtime = "embedded"
    prompts: Text | None = None
    tensorrt_llm: TensorRtLlm = dataclasses.field(default_factory=TensorRtLlm)
    path: Annotated[Path, configuration.from_reader] = Path()

    @property
    def engines(self) -> dict[str, EngineRecipe]:
        """Return the engines by role; without a draft, the target alone."""
        return {"target": self.target} if self.draft is None else {"draft": self.draft, "target": self.target}

    @property
    def prompts_path(self) -> Path | None:
        """Return the absolute path of the prompts; None for general ones."""
        return None if self.prompts is None else self.path.resolve().parent / self.prompts

    @property
    def argument(self) -> str:
        """Return what ``--recipe`` takes for this recipe: its name, or its file if that is elsewhere."""
        return self.name if self.path.resolve().parent == RECIPES else str(self.path.resolve())


def parse_recipe(raw: Any, path: Path) -> Recipe:
    """Parse and check a YAML document.

    Args:
        raw: The document, as the YAML parser returned it.
        path: The file, for error messages.

    Raises:
        RecipeError: A key is unknown, missing, or has a value of the wrong type or range.
    """
    try:
        recipe = configuration.parse(Recipe, raw, RecipeError, _REMEDY)
        _check_sizes(recipe)
    except RecipeError as error:
        raise configuration.located(path, error) from None
    return dataclasses.replace(recipe, path=path)


def _check_sizes(recipe: Recipe) -> None:
    serving = recipe.serving
    serving.default_sampling.check()
    name = recipe.name
    if not re.sub("[-_.]", "", name).isalnum() or name.startswith(".") or name.endswith((".yaml", ".yml")):
        allowed = "letters, digits, -, _ and ., which is not the first, and no .yaml at the end"
        raise RecipeError(f"name={name!r} has others than {allowed}", _REMEDY)
    if (serving.num_draft_tokens or 0) > serving.max_draft_len:
        given = f"serving.num_draft_tokens={serving.num_draft_tokens}"
        raise RecipeError(f"{given} is above max_draft_len={serving.max_draft_len}", _REMEDY)
    if serving.max_draft_len >= serving.max_seq_len:
        given = f"serving.max_draft_len={serving.max_draft_len}"
        raise RecipeError(f"{given} is not below max_seq_len={serving.max_seq_len}", _REMEDY)
    if recipe.draft is None and serving.num_draft_tokens:
        given = f"serving.num_draft_tokens={serving.num_draft_tokens}"
        raise RecipeError(f"{given} without a draft: what is looked up has no fixed length", _REMEDY)
    if recipe.target.lm_head_rows is not None:
        given = f"target.lm_head_rows={recipe.target.lm_head_rows}"
        raise RecipeError(f"{given}: a target without logits of all tokens would give other answers", _REMEDY)
    # Verifying one request takes max_draft_len + 1 rows, which must fit into one step.
    if serving.max_draft_len + 1 > serving.max_num_tokens:
        given = f"serving.max_num_tokens={serving.max_num_tokens}"
        raise RecipeError(f"{given} is below max_draft_len + 1 = {serving.max_draft_len + 1}", _REMEDY)
    # The loop and requests to the target alone share the target's blocks.
    for role, engine in recipe.engines.items():
        num_blocks, num_requests = engine.kv_cache.num_blocks, 2 if role == "target" else 1
        if num_blocks is not None and num_blocks <= num_requests * -(-serving.max_seq_len // 32):
            raise RecipeError(  # one block is reserved
                f"{role}.kv_cache.num_blocks={num_blocks} holds {32 * (num_blocks - 1)} tokens, "
                f"fewer than {num_requests} x max_seq_len={serving.max_seq_len}",
                "raise num_blocks or lower max_seq_len",
            )


def load_recipe(name_or_path: str | Path, runtime: Runtime | None = None) -> Recipe:
    """Load a recipe by name (``demo``) or by the path of its YAML file.

    ``<name>-<gpu>``, such as ``qwen2-5-32b-fp8-h200-141gb``, is the recipe ``<name>`` for another GPU, unless
    a recipe of that name exists.

    Args:
        name_or_path: Name of a recipe, or path of a YAML file.
        runtime: One of ``RUNTIMES``, instead of the recipe's.

    Raises:
        RecipeError: There is no such recipe, it is invalid, or its prompts do not exist.
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
            f"there is no recipe {text}: looked for {path}; known recipes: {', '.join(known)}",
            f"did you mean {near[0]}?" if near else "use a known name or the path of a YAML file",
        )
    recipe = parse_recipe(configuration.load_yaml(path, RecipeError, _REMEDY), path)
    if recipe.prompts_path is not None and not recipe.prompts_path.exists():
        raise RecipeError(
            f"{path}: prompts={recipe.prompts!r} is no file or folder: {recipe.prompts_path} does not exist",
            "correct the path, which is relative to the recipe's own file, or remove it to use general "
            "prompts",
        )
    if gpu is not None:
        section = dataclasses.replace(recipe.tensorrt_llm, gpu=gpu)
        recipe = dataclasses.replace(recipe, name=f"{recipe.name}-{gpu}", tensorrt_llm=section)
    recipe = recipe if runtime is None else dataclasses.replace(recipe, runtime=runtime)
    if recipe.runtime == "tensorrt_llm" and recipe.draft is None:
        raise RecipeError(
            f"recipe {recipe.name} has no draft, and TensorRT-LLM needs one", "add the key draft"
        )
    for role, engine in recipe.engines.items():
        if recipe.runtime == "tensorrt_llm" and engine.quantization in ("auto", "int4"):
            raise RecipeError(
                f"recipe {recipe.name}: {role}.quantization: {engine.quantization} is of the embedded "
                "runtime",
                "set quantization: int8 or int4_awq for TensorRT-LLM",
            )
    return recipe
