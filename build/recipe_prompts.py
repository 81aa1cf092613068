"""Check the prompts of a recipe before anything is downloaded or compiled for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from build.checkpoints.engine_texts import read_engine_texts, write_engine_texts
from build.recipe import REPOSITORY_ROOT, Recipe
from pipelines.errors import RecipeError


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
        write_engine_texts(Path(folder), read_engine_texts(recipe.target.checkpoint_directory))
        command = [sys.executable, "-m", "pipelines.bench.calibration.prompts", "--target", folder]
        command += ["--prompts", str(recipe.prompts_path)]
        done = subprocess.run(command, cwd=REPOSITORY_ROOT, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise RecipeError(
            f"recipe {recipe.name}: the prompts cannot be used",
            values=done.stderr.strip().removeprefix("error: ") or f"exit code {done.returncode}",
            limit="calibration and all reports of a recipe need its prompts",
            remedy="correct them, or name others; nothing has been compiled",
        )
