"""Build what a server needs: both engines of a pair, and their measurement or the plan of GPU memory.

Measuring a pair and reading its prompts are programs of ``pipelines``. They run in processes of their own,
which free their memory when they end.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from build.checkpoints.engine_texts import read_engine_texts, write_engine_texts
from build.engines import build_engines
from build.fetch import fetch_checkpoints
from build.hub.pinned import pin_recipe
from build.recipe import REPOSITORY_ROOT, Recipe
from build.rendering.rendered_pair import calibration_file
from build.tensorrt_llm.memory_plan import MemoryPlan, plan_memory
from build.tensorrt_llm.pair import read_pair
from pipelines.errors import EngineBuildError, RecipeError

ENGINES = REPOSITORY_ROOT / "engines"


@dataclass(frozen=True)
class BuiltPair:
    """A pair that can be rendered, from this machine's ``engines/`` or from a package.

    Attributes:
        recipe: The pair and the limits of its server.
        draft_engine: Engine directory of the draft.
        target_engine: Engine directory of the target. On the embedded runtime, the measurement of the pair is
            beside it (``calibration_file``).
        memory: How the engines share their GPUs; None on the embedded runtime.
    """

    recipe: Recipe
    draft_engine: Path
    target_engine: Path
    memory: MemoryPlan | None = None


def build_pair(recipe: Recipe, report: Callable[[str], None]) -> BuiltPair:
    """Build the engines of a recipe and measure the pair, unless that is done.

    Args:
        recipe: The pair.
        report: Called with one line per stage.

    Raises:
        DraftproofError: See ``build_engines``, ``check_prompts`` and ``measure_pair``.
    """
    recipe = pin_recipe(recipe)
    if not any((ENGINES / recipe.name).glob("calibration-*.json")):  # which was measured with its prompts
        check_prompts(recipe)
    recipe = fetch_checkpoints(recipe, report)
    engines = build_engines(recipe, ENGINES, report)
    if "bundle" in engines:
        raise RecipeError(
            f"NVIDIA's own servers serve TensorRT-LLM {recipe.tensorrt_llm.version}, without a repository of "
            "ours",
            f"in {recipe.tensorrt_llm.container} run sh {engines['serve']}, or sh {engines['triton']}",
        )
    draft, target = Path(engines["draft"]), Path(engines["target"])
    if recipe.runtime == "tensorrt_llm":
        return BuiltPair(recipe, draft, target, plan_memory(read_pair(recipe, ENGINES)))
    measure_pair(recipe, draft, target)
    return BuiltPair(recipe, draft, target)


def measure_pair(recipe: Recipe, draft_engine: Path, target_engine: Path) -> None:
    """Measure the pair unless that is done.

    Raises:
        EngineBuildError: The measurement failed.
    """
    serving = recipe.serving
    max_rows = min(serving.max_batch_size * (serving.max_draft_len + 1), serving.max_num_tokens)
    arguments = ["--draft", str(draft_engine), "--target", str(target_engine), "--max-rows", str(max_rows)]
    arguments += ["--output", str(calibration_file(draft_engine, target_engine))]
    arguments += ["--recipe", recipe.argument]
    if recipe.prompts_path is not None:
        arguments += ["--prompts", str(recipe.prompts_path)]
    problem = _run("pipelines.bench.calibration", *arguments)
    if problem is not None:
        raise EngineBuildError(
            f"the pair could not be measured: {problem}",
            "run 'draftproof doctor' to check this machine; the engines themselves are complete",
        )


def check_prompts(recipe: Recipe) -> None:
    """Check that a recipe's prompts can be read, and conversations rendered with the target's chat template.

    Args:
        recipe: A recipe; the settings of its checkpoints are on this machine.

    Raises:
        CheckpointError: The chat template of the target cannot be read.
        RecipeError: The prompts cannot be used.
    """
    if recipe.prompts_path is None:
        return
    with TemporaryDirectory() as folder:
        write_engine_texts(Path(folder), read_engine_texts(recipe.target.unpack_checkpoint()))
        problem = _run(
            "pipelines.bench.calibration.prompts", "--target", folder, "--prompts", str(recipe.prompts_path)
        )
    if problem is not None:
        raise RecipeError(
            f"recipe {recipe.name}: the prompts cannot be used: {problem}",
            "correct them, or name others; nothing has been compiled",
        )


def _run(module: str, *arguments: str) -> str | None:
    """Run a program, and return what went wrong."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=REPOSITORY_ROOT, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode == 0:
        return None
    return done.stderr.strip().removeprefix("error: ") or f"exit code {done.returncode}"
