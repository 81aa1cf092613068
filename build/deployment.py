"""Renders files to deploy a recipe's server: ``python -m build.deployment --recipe demo``.

``.run/<recipe>/deployment/`` gets a Docker compose file, Kubernetes manifests, Prometheus' rules and examples
for other rollout tools, from ``pipelines/deploy/templates/``. Every server's container runs
``python -m pipelines.deploy run`` on the rendered repository, so no template repeats how Triton is started.
The checkout is mounted at the path that it has here: paths in the rendered repository hold. It is read only
but for the run directory, where a rollout renders and removes pairs, and the router has its weights.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from build.command_line import add_runtime, recipe_parser, run_command
from build.launch import launch_document, pinned
from build.recipe import REPOSITORY_ROOT, Recipe, load_recipe
from build.repository import RUN
from build.templates import render_text
from build.whole import whole_directory
from pipelines.errors import RecipeError, RepositoryError

TEMPLATES = REPOSITORY_ROOT / "pipelines" / "deploy" / "templates"
PYTHON = "/opt/draftproof/venv/bin/python"  # in the image: pipelines/deploy/Dockerfile
IMAGE_USER = 10001  # likewise

_STARTUP_PROBE_S = 10
_STARTUP_S = {"embedded": 120, "tensorrt_llm": 1800}  # as pipelines/deploy/launch.py waits
# Where to begin; what a pair takes is seen on the first day. Embedded: `demo-large` with its four
# engines in memory. On GPUs: engines go through the host's memory when they are loaded, so as much of it
# as the GPUs have; Triton's models and the orchestrator poll.
_EMBEDDED_MEMORY_GIB = 12
_CPUS_PER_GPU = 8


def template_folders(recipe: Recipe) -> tuple[str, ...]:
    """Folders of ``TEMPLATES`` whose files a recipe gets."""
    if recipe.runtime == "embedded":
        return ("every", "one_pod", "canary", "embedded")
    if recipe.tensorrt_llm.num_nodes > 1:
        return ("every", "several_nodes")
    return ("every", "one_pod", "canary", "one_node")


def template_values(recipe: Recipe, image: str | None = None) -> dict[str, str]:
    """What the templates may name, and together must.

    Args:
        recipe: The pair and its limits.
        image: Image that the cluster pulls; None: the one that compose or ``make serve`` builds here.

    Raises:
        RecipeError: The recipe cannot be deployed so; see also ``build.launch.launch_document``.
    """
    launch = launch_document(recipe)
    values = {
        "name": _cluster_name(recipe),
        "checkout": str(REPOSITORY_ROOT),
        "recipe": recipe.name,
        "image": pinned(image, "image") if image else launch["image"],
        "python": PYTHON,
        "startup_probes": str(_STARTUP_S[recipe.runtime] // _STARTUP_PROBE_S),
    }
    if recipe.runtime == "embedded":
        return {
            **values,
            **_one_machine(launch, surge=1),
            "cpus": str(1 + max(recipe.draft.num_threads, recipe.target.num_threads)),
            "memory_gib": str(_EMBEDDED_MEMORY_GIB),
        }
    gpus = _gpus_of_a_pod(launch)
    values["gpus"] = str(gpus)
    values["cpus"] = str(_CPUS_PER_GPU * gpus)
    values["memory_gib"] = str(gpus * _gpu_memory_gb(recipe.tensorrt_llm.gpu))
    if launch["num_nodes"] == 1:
        return {**values, **_one_machine(launch, surge=0)}
    return {**values, "num_nodes": str(launch["num_nodes"])}


def _one_machine(launch: Mapping[str, Any], surge: int) -> dict[str, str]:
    """What compose is told besides, and rollout tools of a cluster.

    Args:
        launch: See ``build.launch.launch_document``.
        surge: Pods that may stand beside the one that they replace.
    """
    return {
        "container": launch["container"],
        "user": f"{os.getuid()}:{os.getgid()}" if os.getuid() else f"{IMAGE_USER}:{IMAGE_USER}",
        "max_surge": str(surge),
        "max_unavailable": str(1 - surge),
    }


def render_deployment(
    recipe: Recipe, run: Path = RUN, image: str | None = None, templates: Path = TEMPLATES
) -> Path:
    """Render every file of a recipe and put them in place as a whole.

    Returns:
        ``<run>/<recipe>/deployment``.

    Raises:
        RecipeError: See ``template_values``.
        RepositoryError: A template cannot be rendered, or a value is used by none.
    """
    texts = _render(recipe, template_values(recipe, image), templates)
    destination = run / recipe.name / "deployment"
    with whole_directory(destination) as staging:
        for name, text in texts.items():
            (staging / name).parent.mkdir(parents=True, exist_ok=True)
            (staging / name).write_text(text, encoding="utf-8")
    return destination


def _render(recipe: Recipe, values: Mapping[str, str], templates: Path) -> dict[str, str]:
    texts: dict[str, str] = {}
    unused = set(values)
    for folder in template_folders(recipe):
        for path in sorted((templates / folder).rglob("*")):
            if path.is_file():
                name = path.relative_to(templates / folder).as_posix()
                texts[name], used = render_text(path.read_text(encoding="utf-8"), values, f"{folder}/{name}")
                unused -= used
    if unused or not texts:
        raise RepositoryError(
            "no template uses some of the values",
            values=", ".join(sorted(unused)) or f"no files in {templates}",
            limit="each value must reach a file",
            remedy="mend pipelines/deploy/templates or build/deployment.py",
        )
    return texts


def _cluster_name(recipe: Recipe) -> str:
    """A DNS label; the name of a pod of several has up to 17 characters more (``-ranks-<group>-<index>``)."""
    name = "draftproof-" + recipe.name.lower().replace("_", "-")
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,44}[a-z0-9])?", name):
        raise RecipeError(
            "the recipe's name cannot name objects of a cluster",
            values=f"name={recipe.name!r}, so {name!r}",
            limit="a DNS label of at most 46 letters, digits and -, which does not end in -",
            remedy="give the recipe a shorter name",
        )
    return name


def _gpus_of_a_pod(launch: Mapping[str, Any]) -> int:
    ids = launch["gpu_device_ids"]
    if ids != list(range(len(ids))):
        raise RecipeError(
            "the GPUs are not the first of their machine",
            values=f"gpu_device_ids {ids}",
            limit=f"{list(range(len(ids)))}: a pod's GPUs are numbered from 0",
            remedy="leave gpu_device_ids out of the recipe that is deployed",
        )
    return len(ids)


def _gpu_memory_gb(gpu: str) -> int:
    """``h100-80gb`` -> 80."""
    return int(gpu.rpartition("-")[2].removesuffix("gb"))


def _render_and_list(options: argparse.Namespace) -> dict[str, Any]:
    recipe = load_recipe(options.recipe, options.runtime)
    directory = render_deployment(recipe, image=options.image)
    files = sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())
    return {"directory": str(directory), "files": files}


def main(arguments: list[str] | None = None) -> int:
    """Command line; the last line of standard output is JSON."""
    parser = recipe_parser("build.deployment", "Render files to deploy a recipe's server.")
    add_runtime(parser)
    parser.add_argument("--image", help="image that the cluster pulls (default: the one that is built here)")
    options = parser.parse_args(arguments)
    return run_command(lambda: _render_and_list(options))


if __name__ == "__main__":
    sys.exit(main())
