"""Recipes of the demo pair for TensorRT-LLM, and run directories rendered from them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from build.recipe import Recipe, load_recipe
from build.repository import launch_of


def gpu_recipe(tp_size: int = 1, draft_tp_size: int = 1, **section: object) -> Recipe:
    recipe = load_recipe("demo", "tensorrt_llm")
    target = dataclasses.replace(recipe.target.tensorrt_llm, tp_size=tp_size)
    draft = dataclasses.replace(recipe.draft.tensorrt_llm, tp_size=draft_tp_size)
    return dataclasses.replace(
        recipe,
        target=dataclasses.replace(recipe.target, tensorrt_llm=target),
        draft=dataclasses.replace(recipe.draft, tensorrt_llm=draft),
        tensorrt_llm=dataclasses.replace(recipe.tensorrt_llm, **section),  # type: ignore[arg-type]
    )


def rendered(directory: Path, recipe: Recipe) -> Path:
    """Return a run directory as ``draftproof repository`` leaves it, as far as starting a server reads it."""
    for model in ("draft", "target", "generate"):
        (directory / "model_repository" / model).mkdir(parents=True, exist_ok=True)
        (directory / "model_repository" / model / "config.pbtxt").write_text("")
    launch_of(recipe).write(directory)
    return directory
