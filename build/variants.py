"""Builds a recipe's pair in several quantizations: ``python -m build.variants --recipe demo``.

For ``make acceptance``. Each checkpoint is the one that TensorRT-LLM's engine would be compiled from, on one
GPU, and the embedded runtime computes it as it says: weights and inputs rounded where the checkpoint has
scales, the output head in floating point, nothing grown.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from build.command_line import add_engines, recipe_parser, run_command
from build.engines import build_engines
from build.quantize import ROLES, quantize_recipe
from build.recipe import REPOSITORY_ROOT, EngineRecipe, Recipe, TensorRtLlmEngine, load_recipe

QUANTIZATIONS = ("none", "fp8", "int8_sq", "int8")


def build_variants(
    recipe: Recipe,
    engines: Path = REPOSITORY_ROOT / "engines",
    quantizations: Sequence[str] = QUANTIZATIONS,
    report: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Quantize and compile both roles in each quantization, unless that is done.

    Args:
        recipe: The pair.
        engines: Folder of the engines.
        quantizations: As in a recipe.
        report: Gets one line per stage.

    Returns:
        ``recipe`` (its name) and, for each role, quantization -> engine directory.

    Raises:
        DraftproofError: As ``quantize_recipe`` and ``build_engines``.
    """
    found: dict[str, Any] = {"recipe": recipe.name, **{role: {} for role in ROLES}}
    for quantization in quantizations:
        checkpoints = quantize_recipe(_each_engine(recipe, "tensorrt_llm", quantization), engines, report)
        compiled = _each_engine(recipe, "embedded", "checkpoint", checkpoints)
        built = build_engines(compiled, engines, report)
        for role in ROLES:
            found[role][quantization] = built[role]
    return found


def _each_engine(
    recipe: Recipe, runtime: str, quantization: str, checkpoints: dict[str, Path] | None = None
) -> Recipe:
    """The recipe with both engines ungrown, on one GPU and in the same quantization."""

    def changed(engine: EngineRecipe, role: str) -> EngineRecipe:
        return replace(
            engine,
            checkpoint=str(checkpoints[role]) if checkpoints else engine.checkpoint,
            quantization=quantization,
            lm_head="checkpoint",
            growth=None,
            tensorrt_llm=TensorRtLlmEngine(),
        )

    return replace(
        recipe,
        runtime=runtime,
        draft=changed(recipe.draft, "draft"),
        target=changed(recipe.target, "target"),
    )


def main(arguments: list[str] | None = None) -> int:
    """Command line; the last line of standard output is JSON."""
    parser = recipe_parser("build.variants", "Build a recipe's pair in several quantizations.")
    add_engines(parser)
    options = parser.parse_args(arguments)
    return run_command(
        lambda: build_variants(
            load_recipe(options.recipe),
            options.engines,
            report=lambda line: print(line, file=sys.stderr, flush=True),
        )
    )


if __name__ == "__main__":
    sys.exit(main())
