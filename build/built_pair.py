"""Build what a server needs: both engines of a pair, and the plan of GPU memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from build.checkpoints.engine_texts import read_engine_texts, write_engine_texts
from build.engines import build_engines
from build.hub.pinned import pin_recipe
from build.recipe import Recipe
from build.tensorrt_llm.memory_plan import MemoryPlan, plan_memory
from build.tensorrt_llm.pair import read_pair
from pipelines.errors import RecipeError
from pipelines.places import CODE, ENGINES


@dataclass(frozen=True)
class BuiltPair:
    """A pair that can be rendered, from this machine's ``engines/`` or from a package.

    Attributes:
        recipe: The pair and the limits of its server.
        draft_engine: Engine directory of the draft; None without a draft.
        target_engine: Engine directory of the target.
        memory: How the engines share their GPUs; None on the embedded runtime.
    """

    recipe: Recipe
    draft_engine: Path | None
    target_engine: Path
    memory: MemoryPlan | None = None


def build_pair(recipe: Recipe, report: Callable[[str], None]) -> BuiltPair:
    """Build the engines of a recipe, unless that is done.

    Args:
        recipe: The pair.
        report: Called with one line per stage.

    Raises:
        DraftproofError: See ``build_engines`` and ``check_prompts``.
    """
    recipe = pin_recipe(recipe)
    check_prompts(recipe)
    engines = build_engines(recipe, ENGINES, report)
    if "bundle" in engines:
        raise RecipeError(
            f"NVIDIA's own servers serve TensorRT-LLM {recipe.tensorrt_llm.version}, without a repository of "
            "ours",
            f"in {recipe.tensorrt_llm.container} run sh {engines['serve']}, or sh {engines['triton']}",
        )
    memory = plan_memory(read_pair(recipe, ENGINES)) if recipe.runtime == "tensorrt_llm" else None
    draft = None if recipe.draft is None else Path(engines["draft"])
    return BuiltPair(recipe, draft, Path(engines["target"]), memory)


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
        write_engine_texts(Path(folder), read_engine_texts(recipe.target.checkpoint_directory()))
        command = [sys.executable, "-m", "pipelines.command_line.chat_prompts", "--target", folder]
        command += ["--prompts", str(recipe.prompts_path)]
        done = subprocess.run(command, cwd=CODE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        problem = done.stderr.strip().removeprefix("error: ") or f"exit code {done.returncode}"
        raise RecipeError(
            f"recipe {recipe.name}: the prompts cannot be used: {problem}",
            "correct them, or name others; nothing has been compiled",
        )
