"""Build what a server needs: both engines of a pair, and their measurement or the plan of GPU memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from build.engines import build_engines
from build.fetch import fetch_checkpoints
from build.hub.pinning import pin_recipe
from build.recipe import REPOSITORY_ROOT, Recipe
from build.recipe_prompts import check_prompts
from build.rendering.template_values import calibration_file
from build.tensorrt_llm.memory_plan import MemoryPlan, plan_memory
from build.tensorrt_llm.rules.pair import read_pair
from pipelines.errors import EngineBuildError

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
    check_prompts(recipe)
    recipe = fetch_checkpoints(recipe, report)
    engines = build_engines(recipe, ENGINES, report)
    draft, target = Path(engines["draft"]), Path(engines["target"])
    if recipe.runtime == "tensorrt_llm":
        return BuiltPair(recipe, draft, target, plan_memory(read_pair(recipe, ENGINES)))
    measure_pair(recipe, draft, target)
    return BuiltPair(recipe, draft, target)


def measure_pair(recipe: Recipe, draft_engine: Path, target_engine: Path) -> None:
    """Measure the pair unless that is done, in a separate process, which frees the memory when it ends.

    Raises:
        EngineBuildError: The measurement failed.
    """
    serving = recipe.serving
    max_rows = min(serving.max_batch_size * (serving.max_draft_len + 1), serving.max_num_tokens)
    output = calibration_file(draft_engine, target_engine)
    command = [sys.executable, "-m", "pipelines.bench.calibration", "--output", str(output)]
    command += ["--draft", str(draft_engine), "--target", str(target_engine), "--max-rows", str(max_rows)]
    if recipe.prompts_path is not None:
        command += ["--prompts", str(recipe.prompts_path)]
    done = subprocess.run(command, cwd=REPOSITORY_ROOT, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise EngineBuildError(
            "the pair could not be measured",
            values=done.stderr.strip().removeprefix("error: ") or f"exit code {done.returncode}",
            limit="both engines must be able to run on this machine",
            remedy="run 'make doctor' to check this machine; the engines themselves are complete",
        )
