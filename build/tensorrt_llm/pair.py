"""A draft and a target as their engines will be compiled, known from recipe and ``config.json`` alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from build.end_tokens import find_end_ids
from build.gpus import GPUS, Gpu
from build.model_config import ModelConfig, read_model_config
from build.quantization.exported_config import QUANT_ALGOS
from build.quantized_checkpoint import checkpoint_for
from build.recipe import EngineRecipe, Recipe
from build.tokenizer_file import TokenizerInfo, read_tokenizer
from pipelines.errors import CheckpointError, RecipeError

ROLES = ("draft", "target")

KV_CACHE_QUANT_ALGOS = {"model": None, "fp8": "FP8", "int8": "INT8"}


@dataclass(frozen=True)
class Side:
    """One of the two engines.

    Attributes:
        role: ``draft`` or ``target``.
        engine: Its section of the recipe.
        source: The checkpoint that the recipe names.
        asked: That network with the quantization, vocabulary size and split that the recipe asks for.
        config: What the engine is compiled from: as the quantized checkpoint says, or ``asked`` while
            there is none.
        checkpoint: Directory that the engine is compiled from, or None if it is yet to be quantized.
        tokenizer: Of ``source``.
        end_ids: Tokens that end a text, likewise.
    """

    role: str
    engine: EngineRecipe
    source: ModelConfig
    asked: ModelConfig
    config: ModelConfig
    checkpoint: Path | None
    tokenizer: TokenizerInfo
    end_ids: tuple[int, ...]

    @property
    def max_input_len(self) -> int | None:
        """Longest prompt that the recipe asks for, tokens, or None."""
        return self.engine.tensorrt_llm.max_input_len


@dataclass(frozen=True)
class Pair:
    """Both engines of a recipe and the GPU they are for."""

    recipe: Recipe
    draft: Side
    target: Side
    gpu: Gpu

    @property
    def sides(self) -> tuple[Side, Side]:
        """Draft, then target."""
        return self.draft, self.target

    @property
    def max_num_tokens(self) -> int:
        """Tokens of one step: the recipe's, or as many as the longest round and the largest batch need."""
        serving, asked = self.recipe.serving, self.recipe.tensorrt_llm.max_num_tokens
        batch = serving.max_batch_size * (serving.max_draft_len + 1)
        return asked if asked is not None else max(serving.max_seq_len, batch, serving.max_num_tokens)

    def max_draft_len(self, side: Side) -> int:
        """Draft tokens that an engine verifies at once: none if it is the draft."""
        return self.recipe.serving.max_draft_len if side.role == "target" else 0


def _asked(engine: EngineRecipe, source: ModelConfig) -> ModelConfig:
    section = engine.tensorrt_llm
    quantization = engine.quantization
    return replace(
        source,
        is_hugging_face=source.is_hugging_face and quantization == "checkpoint",
        quant_algo=source.quant_algo if quantization == "checkpoint" else QUANT_ALGOS[quantization],
        kv_cache_quant_algo=KV_CACHE_QUANT_ALGOS[section.kv_cache_dtype],
        vocab_size=max(source.vocab_size, engine.pad_vocab_size_to or 0),
        tp_size=section.tp_size,
        pp_size=section.pp_size,
    )


def _compiled_from(recipe: Recipe, role: str, source: ModelConfig, engines: Path) -> Path | None:
    engine: EngineRecipe = getattr(recipe, role)
    if engine.quantization == "checkpoint":
        return engine.checkpoint_directory
    made = (engines / recipe.name / "checkpoints").glob(f"{role}-*/manifest.json")
    if source.is_hugging_face and not any(made):
        return None  # without asking: to know which one it will be, all weights would have to be hashed
    try:
        return checkpoint_for(recipe, role, engines)
    except (CheckpointError, RecipeError):  # whoever builds asks again and gets this error
        return None


def _read_side(recipe: Recipe, role: str, engines: Path) -> Side:
    engine: EngineRecipe = getattr(recipe, role)
    directory = engine.checkpoint_directory
    source = read_model_config(directory)
    asked = _asked(engine, source)
    checkpoint = _compiled_from(recipe, role, source, engines)
    tokenizer = read_tokenizer(directory / "tokenizer.json")
    return Side(
        role=role,
        engine=engine,
        source=source,
        asked=asked,
        config=asked if checkpoint is None else read_model_config(checkpoint),
        checkpoint=checkpoint,
        tokenizer=tokenizer,
        end_ids=find_end_ids(directory, tokenizer),
    )


def read_pair(recipe: Recipe, engines: Path) -> Pair:
    """Read what is known of a pair without a GPU and without a weight.

    Args:
        recipe: The pair.
        engines: Folder of the engines, where quantized checkpoints lie too.

    Raises:
        CheckpointError: A ``config.json`` or ``tokenizer.json`` is missing or not what its name says.
    """
    draft, target = (_read_side(recipe, role, engines) for role in ROLES)
    return Pair(recipe, draft, target, GPUS[recipe.tensorrt_llm.gpu])
