"""A draft and a target as they will be compiled, derived from the recipe and ``config.json`` files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from build.checkpoints.engine_texts import read_engine_texts
from build.checkpoints.tokenizer_file import TokenizerInfo, find_end_ids, read_tokenizer
from build.quantization.checks import QUANT_ALGOS
from build.quantization.quantized_checkpoint import checkpoint_for
from build.recipe import EngineRecipe, Recipe
from build.tensorrt_llm.model_config import ModelConfig, read_model_config
from build.tensorrt_llm.settings import GPUS, Gpu
from pipelines.errors import CheckpointError, RecipeError

ROLES = ("draft", "target")


@dataclass(frozen=True)
class Side:
    """One of the two engines.

    Attributes:
        role: ``draft`` or ``target``.
        engine: Its section of the recipe.
        source: Network of the checkpoint that the recipe names.
        requested: That network with the quantization, vocabulary size and split that the recipe asks for.
        config: Network that the engine is compiled from: that of the quantized checkpoint, or ``requested``
            if there is none yet.
        checkpoint: Directory that the engine is compiled from, or None if it is not quantized yet.
        tokenizer: Tokenizer of the checkpoint.
        end_ids: Tokens that end a text.
        texts: Content of the engine's further files by name, such as ``chat.json``.
    """

    role: str
    engine: EngineRecipe
    source: ModelConfig
    requested: ModelConfig
    config: ModelConfig
    checkpoint: Path | None
    tokenizer: TokenizerInfo
    end_ids: tuple[int, ...]
    texts: Mapping[str, str]


@dataclass(frozen=True)
class Pair:
    """Both engines of a recipe, and their GPU."""

    recipe: Recipe
    draft: Side
    target: Side
    gpu: Gpu

    @property
    def sides(self) -> tuple[Side, Side]:
        """Return draft and target."""
        return self.draft, self.target

    @property
    def max_num_tokens(self) -> int:
        """Return the tokens of one step: enough for the longest request and for a round of all requests.

        Each round counts as a full prompt, with reused blocks, and prompts are not chunked, because that
        drops draft tokens (TensorRT-LLM issue #2295). ``trtllm-build`` would raise what is less than a round,
        and lower what is more than ``max_batch_size`` whole requests.
        """
        serving = self.recipe.serving
        batch = serving.max_batch_size * (serving.max_draft_len + 1)
        most = serving.max_batch_size * serving.max_seq_len
        return min(max(serving.max_seq_len, batch, serving.max_num_tokens), most)

    def max_draft_len(self, side: Side) -> int:
        """Return how many draft tokens an engine verifies in one step; 0 for the draft."""
        return self.recipe.serving.max_draft_len if side.role == "target" else 0


def _requested(engine: EngineRecipe, source: ModelConfig) -> ModelConfig:
    section = engine.tensorrt_llm
    quantization = engine.quantization
    return replace(
        source,
        is_hugging_face=source.is_hugging_face and quantization == "checkpoint",
        quant_algo=source.quant_algo if quantization == "checkpoint" else QUANT_ALGOS[quantization],
        kv_cache_quant_algo="FP8" if section.kv_cache_dtype == "fp8" else None,
        vocab_size=max(source.vocab_size, engine.pad_vocab_size_to or 0),
        tp_size=section.tp_size,
        pp_size=section.pp_size,
    )


def _compiled_from(recipe: Recipe, role: str, source: ModelConfig, engines: Path) -> Path | None:
    engine: EngineRecipe = getattr(recipe, role)
    if engine.quantization == "checkpoint":
        return engine.checkpoint_directory()
    made = (engines / recipe.name / "checkpoints").glob(f"{role}-*/manifest.json")
    if source.is_hugging_face and not any(made):
        return None  # avoids hashing all weights
    try:
        return checkpoint_for(recipe, role, engines)
    except (CheckpointError, RecipeError):  # a build reports this error
        return None


def _read_side(recipe: Recipe, role: str, engines: Path) -> Side:
    engine: EngineRecipe = getattr(recipe, role)
    directory = engine.checkpoint_directory()
    source = read_model_config(directory)
    requested = _requested(engine, source)
    checkpoint = _compiled_from(recipe, role, source, engines)
    tokenizer = read_tokenizer(directory / "tokenizer.json")
    return Side(
        role=role,
        engine=engine,
        source=source,
        requested=requested,
        config=requested if checkpoint is None else read_model_config(checkpoint),
        checkpoint=checkpoint,
        tokenizer=tokenizer,
        # A vocab_size that is too small is a finding of its own (rules/vocabulary.py).
        end_ids=find_end_ids(directory, tokenizer, tokenizer.num_ids),
        texts=read_engine_texts(directory),
    )


def read_pair(recipe: Recipe, engines: Path) -> Pair:
    """Read a pair without a GPU and without its weights.

    Args:
        recipe: The pair.
        engines: Folder that holds the engines and the quantized checkpoints.

    Raises:
        CheckpointError: A ``config.json`` or ``tokenizer.json`` is missing or invalid.
    """
    draft, target = (_read_side(recipe, role, engines) for role in ROLES)
    return Pair(recipe, draft, target, GPUS[recipe.tensorrt_llm.gpu])
