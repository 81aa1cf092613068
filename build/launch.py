"""``launch.json``: how the server of a rendered repository is started.

It lies beside the repository, in ``.run/<recipe>/``; ``pipelines/deploy/launch.py`` reads it. Whoever
starts the server thus needs no recipe, no engine and no YAML parser.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from build.manifest import sha256_file, sha256_json
from build.recipe import REPOSITORY_ROOT, Recipe
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
        engines), ``world_size`` (ranks that MPI starts), ``num_nodes`` and ``gpu_device_ids`` (of one node).

    Raises:
        RecipeError: The container has no fixed tag, or the ranks do not fit the nodes.
    """
    if recipe.runtime == "embedded":
        return {"runtime": "embedded", **_image(recipe.runtime, EMBEDDED_CONTAINER, "server")}
    section = recipe.tensorrt_llm
    container = pinned(section.container, "tensorrt_llm.container")
    return {
        "runtime": recipe.runtime,
        **_image(recipe.runtime, container, "node" if section.num_nodes > 1 else "server"),
        "mode": section.mode,
        "spawns_workers": _spawns_workers(recipe),
        "world_size": _world_size(recipe),
        "num_nodes": section.num_nodes,
        "gpu_device_ids": _gpu_device_ids(recipe),
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
    staged = path.with_name(f".launch.{os.getpid()}.json")
    staged.write_text(json.dumps(launch_document(recipe), indent=2) + "\n", encoding="utf-8")
    staged.replace(path)
    return path


def pinned(image: str, key: str) -> str:
    """The image, if its name says which one it is.

    Raises:
        RecipeError: It has neither a tag other than ``latest`` nor a digest.
    """
    name, _, digest = image.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2]
    if not digest and tag in ("", "latest"):
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


def _spawns_workers(recipe: Recipe) -> bool:
    section = recipe.tensorrt_llm
    # Spawned ranks stay on the machine of their parent, and have no fast logits (llama_multi_instance.md).
    return section.mode == "orchestrator" and not section.fast_logits and section.num_nodes == 1


def _world_size(recipe: Recipe) -> int:
    draft, target = (engine.tensorrt_llm.world_size for engine in (recipe.draft, recipe.target))
    if recipe.tensorrt_llm.mode == "leader":
        return max(draft, target)  # every rank is a server that loads its part of both
    return 1 if _spawns_workers(recipe) else 1 + draft + target


def _gpu_device_ids(recipe: Recipe) -> list[int]:
    """GPUs of one node that either engine uses, ascending."""
    section = recipe.tensorrt_llm
    used: set[int] = set()
    for role, engine in (("draft", recipe.draft.tensorrt_llm), ("target", recipe.target.tensorrt_llm)):
        num_nodes = section.num_nodes if role == "target" or section.mode == "leader" else 1
        if engine.world_size % num_nodes:
            raise RecipeError(
                "the ranks do not fit the nodes",
                values=f"{role}: tp_size {engine.tp_size} x pp_size {engine.pp_size} = {engine.world_size}",
                limit=f"the same number on each of num_nodes={num_nodes}",
                remedy="change tp_size, pp_size or tensorrt_llm.num_nodes",
            )
        per_node = engine.world_size // num_nodes
        used.update(engine.gpu_device_ids or range(per_node))
    return sorted(used)
