"""Renders ``model_repository/`` for a recipe: ``python -m build.repository --recipe demo``.

The result is ``.run/<recipe>/model_repository/``, replaced as a whole but for the pairs that a rollout put
beside the recipe's own. With ``--beside`` the recipe's pair is added so to a repository that is there, and
may be served at the moment (``build/beside.py``).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from build.beside import models_beside, render_beside
from build.command_line import add_runtime, print_line, recipe_parser, run_command
from build.engines import build_engines
from build.launch import write_launch_file
from build.manifest import verify_manifest
from build.memory_plan import MemoryPlan, plan_memory
from build.pair_record import PairRecord
from build.recipe import REPOSITORY_ROOT, Recipe, load_recipe
from build.template_values import PairNames, calibration_file, template_values
from build.templates import TEMPLATES, render_repository
from build.tensorrt_llm.pair import read_pair
from pipelines.errors import EngineBuildError

ENGINES = REPOSITORY_ROOT / "engines"
RUN = REPOSITORY_ROOT / ".run"


def render_recipe(
    recipe: Recipe,
    draft_engine: Path,
    target_engine: Path,
    run: Path = RUN,
    memory: MemoryPlan | None = None,
) -> Path:
    """Render the repository of a recipe, whose engines are first checked against their hashes.

    Args:
        recipe: Names the runtime.
        draft_engine: Engine directory of the draft.
        target_engine: Engine directory of the target.
        run: Parent of the recipe's run directory, which also gets ``launch.json``.
        memory: How the engines share their GPUs; needed on TensorRT-LLM alone.

    Returns:
        ``<run>/<recipe>/model_repository``.

    Raises:
        EngineLoadError: A file of an engine is missing or was changed since it was built.
        RepositoryError: See ``render_repository`` and ``models_beside``.
    """
    manifests = verify_manifest(draft_engine), verify_manifest(target_engine)
    destination = run / recipe.name / "model_repository"
    values = template_values(
        recipe, draft_engine.resolve(), target_engine.resolve(), destination.parent.resolve(), memory
    )
    beside = models_beside(destination.parent, recipe.runtime, *manifests)
    models = render_repository(TEMPLATES, recipe.runtime, values, destination, beside)
    names = PairNames()
    own = [model for model in models if model in asdict(names).values()]
    record = PairRecord.of(recipe, *manifests, values, names, own, loads_at_start=True, memory=memory)
    record.write(destination / names.speculative)
    write_launch_file(recipe, destination.parent)
    return destination


def measure_pair(recipe: Recipe, draft_engine: Path, target_engine: Path) -> None:
    """Have the pair measured, unless it is; in a process of its own, whose memory goes with it.

    Raises:
        EngineBuildError: It could not be.
    """
    serving = recipe.serving
    max_rows = min(serving.max_batch_size * (serving.max_draft_len + 1), serving.max_num_tokens)
    output = calibration_file(draft_engine, target_engine)
    command = [sys.executable, "-m", "pipelines.calibration", "--output", str(output)]
    command += ["--draft", str(draft_engine), "--target", str(target_engine), "--max-rows", str(max_rows)]
    done = subprocess.run(command, cwd=REPOSITORY_ROOT, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise EngineBuildError(
            "the pair could not be measured",
            values=done.stderr.strip().removeprefix("error: ") or f"exit code {done.returncode}",
            limit="both engines must run on this machine",
            remedy="run 'make doctor'; the engines themselves are built",
        )


def _build_and_render(options: argparse.Namespace) -> dict[str, Any]:
    recipe = load_recipe(options.recipe, options.runtime)
    engines = build_engines(recipe, ENGINES, print_line)
    draft, target = Path(engines["draft"]), Path(engines["target"])
    memory = None
    if recipe.runtime == "embedded":
        measure_pair(recipe, draft, target)
    else:
        memory = plan_memory(read_pair(recipe, ENGINES))
    if options.beside is not None:
        return render_beside(recipe, draft, target, options.beside.resolve(), memory).document()
    destination = render_recipe(recipe, draft, target, memory=memory)
    return {"model_repository": str(destination), "recipe": recipe.name}


def main(arguments: list[str] | None = None) -> int:
    """Command line; the last line of standard output is JSON."""
    parser = recipe_parser("build.repository", "Render the model repository of a recipe.")
    add_runtime(parser)
    parser.add_argument(
        "--beside",
        type=Path,
        metavar="RUN_DIRECTORY",
        help="add the pair to the repository of this run directory, under names of its own",
    )
    options = parser.parse_args(arguments)
    return run_command(lambda: _build_and_render(options))


if __name__ == "__main__":
    sys.exit(main())
