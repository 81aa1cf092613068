"""What a draft and a target must have in common: ``python -m build.preflight --recipe demo``.

Checked before anything is compiled or loaded. Here stand the rules of the embedded runtime and the command;
those of TensorRT-LLM are in ``build/tensorrt_llm/``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build.checkpoint import Checkpoint, read_checkpoint
from build.command_line import add_engines, add_runtime, recipe_parser, run_command
from build.end_tokens import find_end_ids
from build.growth import check_growth
from build.quantized_checkpoint import checkpoint_for
from build.recipe import REPOSITORY_ROOT, EngineRecipe, Recipe, load_recipe
from build.tensorrt_llm.preflight import run_preflight
from build.tokenizer_file import TokenizerInfo, read_tokenizer
from pipelines.errors import CheckpointError, IncompatiblePairError, RecipeError


@dataclass(frozen=True)
class EngineSource:
    """A checkpoint that was found fit to become an engine.

    Attributes:
        checkpoint: Its weights and configuration.
        tokenizer_path: Its ``tokenizer.json``.
        tokenizer: What that file says.
        end_ids: Tokens that end a text.
    """

    checkpoint: Checkpoint
    tokenizer_path: Path
    tokenizer: TokenizerInfo
    end_ids: tuple[int, ...]


def read_source(engine: EngineRecipe, directory: Path) -> EngineSource:
    """Read one engine's checkpoint and tokenizer.

    Args:
        engine: How the engine is made.
        directory: The checkpoint that it is compiled from (``build/quantized_checkpoint.py``).

    Raises:
        CheckpointError: One of them cannot be used, or the tokenizer has more tokens than the network.
        RecipeError: The recipe grows the network to sizes that it cannot have.
    """
    checkpoint = read_checkpoint(directory)
    path = directory / "tokenizer.json"
    tokenizer = read_tokenizer(path)
    vocab_size = checkpoint.config.vocab_size
    if tokenizer.num_tokens > vocab_size:
        raise CheckpointError(
            f"{path} does not belong to its checkpoint",
            values=f"{tokenizer.num_tokens} tokens",
            limit=f"vocab_size={vocab_size} in config.json",
            remedy="copy the tokenizer of this very model into the checkpoint directory",
        )
    if engine.growth is not None:
        check_growth(checkpoint.config, engine.growth)
    return EngineSource(checkpoint, path, tokenizer, find_end_ids(engine.checkpoint_directory, tokenizer))


def check_pair(recipe: Recipe, draft: EngineSource, target: EngineSource) -> None:
    """Check that the draft's tokens mean the same to the target, and that both reach far enough.

    Raises:
        IncompatiblePairError: Tokenizer, vocabulary size, end token or context length do not allow it.
    """
    same = {
        "tokenizers": (draft.tokenizer.sha256[:16], target.tokenizer.sha256[:16]),
        "vocabulary sizes": (draft.checkpoint.config.vocab_size, target.checkpoint.config.vocab_size),
    }
    for what, (of_draft, of_target) in same.items():
        if of_draft != of_target:
            raise IncompatiblePairError(
                f"recipe {recipe.name}: draft and target have different {what}",
                values=f"draft {of_draft}, target {of_target}",
                limit="a draft token is a target token only if both ids mean the same text",
                remedy="choose a draft of the target's family",
            )
    if not set(draft.end_ids) & set(target.end_ids):
        raise IncompatiblePairError(
            f"recipe {recipe.name}: draft and target end a text with different tokens",
            values=f"draft {draft.end_ids}, target {target.end_ids}",
            limit="at least one in common: the target decides where a text ends, but a draft of its family "
            "ends there too",
            remedy="choose a draft of the target's family, or correct the end tokens of one",
        )
    for role, source in (("draft", draft), ("target", target)):
        positions = source.checkpoint.config.max_position_embeddings
        if positions < recipe.serving.max_seq_len:
            raise IncompatiblePairError(
                f"recipe {recipe.name}: the {role} does not reach as far as the server promises",
                values=f"serving.max_seq_len={recipe.serving.max_seq_len}",
                limit=f"max_position_embeddings={positions} of the {role}",
                remedy="lower serving.max_seq_len, or choose another checkpoint",
            )


def check_recipe(
    recipe: Recipe, engines: Path = REPOSITORY_ROOT / "engines"
) -> tuple[EngineSource, EngineSource]:
    """Everything that can be known before compiling.

    Args:
        recipe: The pair.
        engines: Folder of the engines, with the quantized checkpoints below it.

    Returns:
        Sources of draft and target.

    Raises:
        CheckpointError: A checkpoint cannot be used.
        RecipeError: A growth is not possible.
        IncompatiblePairError: The two do not form a pair.
    """
    draft, target = (
        read_source(getattr(recipe, role), checkpoint_for(recipe, role, engines))
        for role in ("draft", "target")
    )
    check_pair(recipe, draft, target)
    return draft, target


def _check_embedded(recipe: Recipe, engines: Path, given: Mapping[str, Path]) -> dict[str, Any]:
    if given:
        raise RecipeError(
            "engines are compared with the recipe on TensorRT-LLM only",
            values=f"--{next(iter(given))}-engine, runtime embedded",
            limit="engines of the embedded runtime are checked against their manifest when they are loaded",
            remedy="leave it out, or give --runtime tensorrt_llm",
        )
    draft, target = check_recipe(recipe, engines)
    for role, source in (("draft", draft), ("target", target)):
        print(f"{role}: {source.checkpoint.directory}, {source.tokenizer.num_tokens} tokens")
    return {"recipe": recipe.name, "runtime": recipe.runtime, "findings": []}


def _check(options: argparse.Namespace) -> dict[str, Any]:
    recipe = load_recipe(options.recipe, options.runtime)
    both = {"draft": options.draft_engine, "target": options.target_engine}
    given = {role: path for role, path in both.items() if path is not None}
    if recipe.runtime == "embedded":
        return _check_embedded(recipe, options.engines, given)
    return run_preflight(recipe, options.engines, given, options.run)


def main(arguments: list[str] | None = None) -> int:
    """Command line; the last line of standard output is JSON."""
    parser = recipe_parser("build.preflight", "Check a pair before anything is built or loaded.")
    add_runtime(parser)
    add_engines(parser)
    parser.add_argument("--draft-engine", type=Path, help="a TensorRT-LLM engine to compare with the recipe")
    parser.add_argument("--target-engine", type=Path, help="a TensorRT-LLM engine to compare with the recipe")
    parser.add_argument(
        "--run", type=Path, default=REPOSITORY_ROOT / ".run", help="gets <recipe>/preflight.json"
    )
    options = parser.parse_args(arguments)
    return run_command(lambda: _check(options), fails=lambda document: bool(document["findings"]))


if __name__ == "__main__":
    sys.exit(main())
