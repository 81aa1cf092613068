"""Choose the prompts of a program: those of an option, of a recipe, or the general ones."""

from __future__ import annotations

from pathlib import Path

from pipelines import configuration
from pipelines.command_line.general_prompts import given_prompts
from pipelines.command_line.prompts import Prompts
from pipelines.errors import RecipeError
from pipelines.places import CODE

_RECIPES = CODE / "build" / "recipes"


def choose_prompts(given: Path | None, recipe: str) -> Prompts:
    """Read the prompts of a program.

    Args:
        given: Value of ``--prompts``; None if it was not given.
        recipe: Name of a recipe, path of its YAML file, or path of a package; "" for none.

    Returns:
        The prompts in ``given``, else those that the recipe names, else the general ones.

    Raises:
        InvalidRequestError: See ``given_prompts``.
        RecipeError: The recipe cannot be read.
    """
    return given_prompts(given or _prompts_of_recipe(recipe))


def _prompts_of_recipe(recipe: str) -> Path | None:
    """Return the path in a recipe's key ``prompts``; ``build/recipe.py`` checks the recipe itself."""
    file = _recipe_file(recipe)
    if file is None:
        return None
    remedy = "use the name of a recipe, or the path of its file"
    document = configuration.load_yaml(file, RecipeError, remedy)
    named = document.get("prompts") if isinstance(document, dict) else None
    return None if named is None else file.parent / str(named)


def _recipe_file(recipe: str) -> Path | None:
    if recipe.endswith((".yaml", ".yml")) or "/" in recipe:
        path = Path(recipe)
        return path / "recipe.yaml" if path.is_dir() else path  # of a package
    # A recipe for another GPU, such as qwen3-32b-fp8-h200-141gb, has the file qwen3-32b-fp8.yaml.
    files = sorted(_RECIPES.glob("*.yaml"), key=lambda file: len(file.stem), reverse=True)
    return next((file for file in files if f"{recipe}-".startswith(f"{file.stem}-")), None)
