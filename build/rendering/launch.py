"""Say how to start the server of a rendered repository: ``launch.json`` beside it (``Launch``)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from build.recipe import Recipe
from build.tensorrt_llm.ranks import (
    gpu_device_ids,
    placement_violations,
    ranks_per_node,
    spawns_workers,
    world_size,
)
from build.tensorrt_llm.versions import has_fixed_tag
from pipelines.deploy.triton.launch import Launch, PackageOrigin
from pipelines.errors import RecipeError


def launch_of(recipe: Recipe) -> Launch:
    """Return how to start a recipe's server.

    Raises:
        RecipeError: The container has no fixed tag, or the ranks do not fit the nodes.
    """
    if recipe.runtime == "embedded":
        return Launch()
    for violation in placement_violations(recipe):
        raise violation.error(RecipeError)
    section = recipe.tensorrt_llm
    if not has_fixed_tag(section.container):
        raise RecipeError(
            "an image has no fixed tag",
            values=f"tensorrt_llm.container={section.container}",
            limit="needs a digest or a tag other than latest, because the image must not change",
            remedy="set one, such as nvcr.io/nvidia/tritonserver:26.04-trtllm-python-py3",
        )
    return Launch(
        runtime=recipe.runtime,
        container=section.container,
        mode=section.mode,
        spawns_workers=spawns_workers(recipe),
        world_size=world_size(recipe),
        num_nodes=section.num_nodes,
        ranks_per_node=ranks_per_node(recipe),
        gpu_device_ids=tuple(sorted({*gpu_device_ids(recipe, "draft"), *gpu_device_ids(recipe, "target")})),
    )


def write_launch_file(recipe: Recipe, run_directory: Path, package: PackageOrigin | None = None) -> None:
    """Write ``launch.json`` of a rendered repository.

    Args:
        recipe: The pair; see ``launch_of``.
        run_directory: ``.run/<recipe>``, which contains the repository.
        package: The package that it was rendered from, or None.

    Raises:
        RecipeError: See ``launch_of``.
    """
    replace(launch_of(recipe), package=package).write(run_directory)
