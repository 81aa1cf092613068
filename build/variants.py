"""Build a recipe's pair in several quantizations: ``python -m build.variants --recipe demo``.

``make acceptance`` uses the result. The checkpoints are those that TensorRT-LLM engines for one GPU would be
compiled from. The embedded runtime emulates them: weights and inputs are rounded where the checkpoint has
scales, the output head stays floating point, and growth is ignored.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from build.checkpoints.quantized_checkpoint import check_embedded_runtime
from build.command_line import add_engines, recipe_parser, run_command
from build.engines import build_engines
from build.fetch import fetch_checkpoints
from build.quantization.source import read_checkpoint_source
from build.quantize import ROLES, quantize_recipe
from build.recipe import (
    REPOSITORY_ROOT,
    EngineRecipe,
    Quantization,
    Recipe,
    Runtime,
    load_recipe,
)
from build.tensorrt_llm.settings import TensorRtLlmEngine

QUANTIZATIONS: tuple[Quantization, ...] = ("none", "fp8", "int8_sq", "int8")


def build_variants(
    recipe: Recipe,
    engines: Path = REPOSITORY_ROOT / "engines",
    quantizations: Sequence[Quantization] = QUANTIZATIONS,
    report: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Quantize and compile both roles in each quantization, unless the results exist already.

    Args:
        recipe: The pair.
        engines: Folder that holds the engines.
        quantizations: Values of ``quantization`` in a recipe.
        report: Called with one line per stage.

    Returns:
        ``recipe`` (its name) and, for each role, quantization -> engine directory.

    Raises:
        DraftproofError: See ``check_embedded_runtime``, ``quantize_recipe`` and ``build_engines``.
    """
    recipe = fetch_checkpoints(recipe, report)
    for role in ROLES:
        engine: EngineRecipe = getattr(recipe, role)
        check_embedded_runtime(recipe, role, read_checkpoint_source(engine.checkpoint_directory))
    found: dict[str, Any] = {"recipe": recipe.name, **{role: {} for role in ROLES}}
    for quantization in quantizations:
        checkpoints = quantize_recipe(_each_engine(recipe, "tensorrt_llm", quantization), engines, report)
        compiled = _each_engine(recipe, "embedded", "checkpoint", checkpoints)
        built = build_engines(compiled, engines, report)
        for role in ROLES:
            found[role][quantization] = built[role]
    return found


def _each_engine(
    recipe: Recipe, runtime: Runtime, quantization: Quantization, checkpoints: dict[str, Path] | None = None
) -> Recipe:
    """Return the recipe with both engines in the same quantization, on one GPU and without growth."""

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
    """Run the command; the last line of standard output is JSON."""
    parser = recipe_parser("python -m build.variants", "Build a recipe's pair in several quantizations.")
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
