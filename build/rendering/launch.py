"""Write ``launch.json``, which describes how to start the server of a rendered repository.

The file is next to the repository, in ``.run/<recipe>/``. ``pipelines/deploy/triton/launch.py`` reads it, so
that starting a server needs no recipe, no engine and no YAML parser.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from build.recipe import Recipe
from build.rendering.image import environment_image
from build.tensorrt_llm.ranks import (
    gpu_device_ids,
    placement_violations,
    ranks_per_node,
    spawns_workers,
    world_size,
)
from build.tensorrt_llm.versions import has_fixed_tag
from pipelines.atomic_file import write_whole
from pipelines.errors import RecipeError

FORMAT = 4
"""Version of the rendered repository's format; ``pipelines/deploy/triton/launch.py`` rejects others."""

EMBEDDED_CONTAINER = "python:3.11.13-slim-bookworm"
"""Base image of the embedded runtime, for its glibc 2.36 and shared libpython."""


def launch_document(recipe: Recipe) -> dict[str, Any]:
    """Return how to start a recipe's server.

    Returns:
        ``runtime``, ``container`` (base image) and ``image`` (image with Python's packages, for a server in a
        container that mounts the checkout). On TensorRT-LLM also ``mode`` (``orchestrator`` or ``leader``),
        ``spawns_workers`` (whether the server starts the ranks of its engines), ``world_size`` (ranks that
        MPI starts), ``num_nodes``, ``ranks_per_node`` (on every node but the first) and ``gpu_device_ids``
        (GPUs of both engines on one node).

    Raises:
        RecipeError: The container has no fixed tag, or the ranks do not fit the nodes.
    """
    if recipe.runtime == "embedded":
        return {"runtime": "embedded", **_images("embedded", EMBEDDED_CONTAINER)}
    for violation in placement_violations(recipe):
        raise violation.error(RecipeError)
    section = recipe.tensorrt_llm
    container = pinned(section.container, "tensorrt_llm.container")
    return {
        "runtime": recipe.runtime,
        **_images(recipe.runtime, container),
        "mode": section.mode,
        "spawns_workers": spawns_workers(recipe),
        "world_size": world_size(recipe),
        "num_nodes": section.num_nodes,
        "ranks_per_node": ranks_per_node(recipe),
        "gpu_device_ids": sorted({*gpu_device_ids(recipe, "draft"), *gpu_device_ids(recipe, "target")}),
    }


@dataclass(frozen=True)
class PackageOrigin:
    """The package that a repository was rendered from.

    Attributes:
        directory: Absolute path of the package, whose engines the server loads.
        sha256: Digest of its ``package.json``.
    """

    directory: str
    sha256: str


def write_launch_file(recipe: Recipe, run_directory: Path, package: PackageOrigin | None = None) -> Path:
    """Write ``launch.json`` of a rendered repository.

    Args:
        recipe: The pair; see ``launch_document``.
        run_directory: ``.run/<recipe>``, which contains the repository.
        package: The package that it was rendered from, or None.

    Returns:
        Path of the file.

    Raises:
        RecipeError: See ``launch_document``.
    """
    path = run_directory / "launch.json"
    document = {"format": FORMAT, **launch_document(recipe)}
    if package is not None:
        document["package"] = asdict(package)
    write_whole(path, json.dumps(document, indent=2) + "\n")
    return path


def pinned(image: str, key: str) -> str:
    """Return the name of an image if it has a fixed tag or a digest.

    Raises:
        RecipeError: It has no tag, or the tag ``latest``, and no digest.
    """
    if not has_fixed_tag(image):
        raise RecipeError(
            "an image has no fixed tag",
            values=f"{key}={image}",
            limit="needs a digest or a tag other than latest, because the image must not change",
            remedy="set one, such as nvcr.io/nvidia/tritonserver:26.04-trtllm-python-py3",
        )
    return image


def _images(runtime: str, container: str) -> dict[str, str]:
    return {"container": container, "image": environment_image(runtime, container)}
