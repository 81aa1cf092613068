"""``launch.json``: how the server of a rendered repository is started.

It lies beside the repository, in ``.run/<recipe>/``; ``pipelines/deploy/launch.py`` reads it. Whoever
starts the server thus needs no recipe, no engine and no YAML parser.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from build.manifest import sha256_file, sha256_json
from build.recipe import REPOSITORY_ROOT, Recipe
from build.tensorrt_llm.ranks import gpu_device_ids, misplaced, ranks_per_node, spawns_workers, world_size
from build.tensorrt_llm.versions import has_fixed_tag
from build.whole import write_whole
from pipelines.errors import RecipeError

EMBEDDED_CONTAINER = "python:3.11.13-slim-bookworm"
"""What the image of the embedded runtime is built on: glibc 2.36, a shared libpython, nothing else needed."""

# What decides the content of an image besides the one it is built on.
_IMAGE_SOURCES = ("pipelines/deploy/Dockerfile", "requirements/run.txt")


def launch_document(recipe: Recipe) -> dict[str, Any]:
    """Everything about starting a server that the recipe decides.

    Returns:
        ``runtime``; ``container`` (what the image is built on), ``image`` (what is built, and served
        from) and ``image_target`` (stage of ``pipelines/deploy/Dockerfile``). On TensorRT-LLM also ``mode``
        (``orchestrator`` or ``leader``), ``spawns_workers`` (whether the server starts the ranks of its
        engines), ``world_size`` (ranks that MPI starts), ``num_nodes``, ``ranks_per_node`` (on each but the
        first) and ``gpu_device_ids`` (of one node, both engines').

    Raises:
        RecipeError: The container has no fixed tag, or the ranks do not fit the nodes.
    """
    if recipe.runtime == "embedded":
        return {"runtime": "embedded", **_image(recipe.runtime, EMBEDDED_CONTAINER, "server")}
    for broken in misplaced(recipe):
        raise broken.error(RecipeError)
    section = recipe.tensorrt_llm
    container = pinned(section.container, "tensorrt_llm.container")
    return {
        "runtime": recipe.runtime,
        **_image(recipe.runtime, container, "node" if section.num_nodes > 1 else "server"),
        "mode": section.mode,
        "spawns_workers": spawns_workers(recipe),
        "world_size": world_size(recipe),
        "num_nodes": section.num_nodes,
        "ranks_per_node": ranks_per_node(recipe),
        "gpu_device_ids": sorted({*gpu_device_ids(recipe, "draft"), *gpu_device_ids(recipe, "target")}),
    }


def write_launch_file(recipe: Recipe, run_directory: Path) -> Path:
    """Write ``launch.json`` of a rendered repository, as a whole.

    Args:
        recipe: Decides the content; see ``launch_document``.
        run_directory: ``.run/<recipe>``, which holds the repository.

    Returns:
        The file.

    Raises:
        RecipeError: See ``launch_document``.
    """
    path = run_directory / "launch.json"
    write_whole(path, json.dumps(launch_document(recipe), indent=2) + "\n")
    return path


def pinned(image: str, key: str) -> str:
    """The image, if its name says which one it is.

    Raises:
        RecipeError: It has neither a tag other than ``latest`` nor a digest.
    """
    if not has_fixed_tag(image):
        raise RecipeError(
            "an image has no fixed tag",
            values=f"{key}={image}",
            limit="a tag other than latest, or a digest: what is served must not change by itself",
            remedy="name one, such as nvcr.io/nvidia/tritonserver:26.04-trtllm-python-py3",
        )
    return image


def _image(runtime: str, container: str, target: str) -> dict[str, str]:
    content = {
        "container": container,
        "target": target,
        **{name: sha256_file(REPOSITORY_ROOT / name) for name in _IMAGE_SOURCES},
    }
    name = f"draftproof-{runtime.replace('_', '-')}:{sha256_json(content)[:12]}"
    return {"container": container, "image": name, "image_target": target}
