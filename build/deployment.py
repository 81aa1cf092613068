"""Render the files that deploy a recipe's server: ``python -m build.deployment --recipe demo``.

The templates in ``pipelines/deploy/templates/`` become a Docker Compose file, Kubernetes manifests,
Prometheus rules and examples for other rollout tools in ``.run/<recipe>/deployment/``. Every server container
runs ``python -m pipelines.deploy run`` on a package (``build/package.py``), so that no template repeats how
Triton is started. The image has the code; packages are mounted read-only at ``/packages``. A container writes
only to its run directory, where the repository is rendered and the router keeps its weights.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from build.command_line import add_public_key, add_runtime, print_line, recipe_parser, run_command
from build.networks.memory import SERVER_BYTES, SHARE_USED
from build.package import PACKAGES
from build.packaging.signature import read_public_key
from build.recipe import REPOSITORY_ROOT, Recipe, load_recipe
from build.rendering.fleet import fleet_files
from build.rendering.image import CODE, server_image
from build.rendering.kv_blocks import bytes_at_start
from build.rendering.launch import launch_document, pinned
from build.rendering.templates import render_text
from build.repository import RUN
from pipelines.atomic_file import whole_directory
from pipelines.errors import RecipeError, RepositoryError

TEMPLATES = REPOSITORY_ROOT / "pipelines" / "deploy" / "templates"
DASHBOARDS = REPOSITORY_ROOT / "pipelines" / "deploy" / "dashboards"
"""Grafana's; they are copied, since they have placeholders of their own."""

PYTHON = "/opt/draftproof/venv/bin/python"  # as in pipelines/deploy/Dockerfile
SETTINGS = "/etc/draftproof/settings"  # as in the templates
PUBLIC_KEY = "package.pub"
_SETTINGS_FILES = ("front_door.yaml", "haproxy.cfg", PUBLIC_KEY)
IMAGE_USER = 10001  # as in pipelines/deploy/Dockerfile

_STARTUP_PROBE_S = 10
_STARTUP_S = {"embedded": 600, "tensorrt_llm": 1800}  # as in pipelines/deploy/triton/launch.py
# Starting points, to be adjusted to what the pair uses. Embedded: room for a rollout of a pair like
# `demo-large`; more for pairs that need more. On GPUs: engines are loaded through host memory, so as much of
# it as the GPUs have; Triton's models and the orchestrator poll, which takes CPU time.
_LEAST_MEMORY_GIB = 12
_CPUS_PER_GPU = 8
_GIB = 1 << 30
_RUN_GIB = 2  # of the run directory; observations take at most 512 MiB


def template_folders(recipe: Recipe) -> tuple[str, ...]:
    """Return the folders of ``TEMPLATES`` that apply to a recipe."""
    if recipe.runtime == "embedded":
        return ("every", "one_pod", "canary", "embedded")
    if recipe.tensorrt_llm.num_nodes > 1:
        return ("every", "several_nodes")
    return ("every", "one_pod", "canary", "one_node")


def template_values(
    recipe: Recipe, image: str | None = None, run: Path = RUN, *, demands_key: bool = False
) -> dict[str, str]:
    """Return the values for the templates' placeholders; every value is used by at least one template.

    Args:
        recipe: The pair and its limits.
        image: Image that the cluster pulls; None: the one that Compose builds here.
        run: Parent of the recipe's run directory. Its pairs decide the memory of an embedded server.
        demands_key: Whether servers refuse packages that the key in ``PUBLIC_KEY`` has not signed.

    Raises:
        EngineLoadError: The sizes of an engine cannot be read.
        RecipeError: The recipe cannot be deployed; see also ``build.rendering.launch.launch_document``.
    """
    launch = launch_document(recipe)
    target = "node" if launch.get("num_nodes", 1) > 1 else "server"
    values = {
        "name": _cluster_name(recipe),
        "code": CODE,
        "recipe": recipe.name,
        "image": pinned(image, "image")
        if image
        else server_image(recipe.runtime, launch["container"], target),
        "python": PYTHON,
        "public_key": f"{SETTINGS}/{PUBLIC_KEY}" if demands_key else "",
        "startup_probes": str(_STARTUP_S[recipe.runtime] // _STARTUP_PROBE_S),
    }
    if recipe.runtime == "embedded":
        return {
            **values,
            **_one_machine(launch, container_run_directory(recipe, run), surge=1),
            "cpus": str(1 + max(recipe.draft.num_threads, recipe.target.num_threads)),
            **_embedded_sizes(run / recipe.name / "model_repository"),
        }
    gpus = _gpus_of_a_pod(launch)
    values["gpus"] = str(gpus)
    values["cpus"] = str(_CPUS_PER_GPU * gpus)
    values["memory_gib"] = str(gpus * _gpu_memory_gb(recipe.tensorrt_llm.gpu))
    if launch["num_nodes"] == 1:
        one_machine = _one_machine(launch, container_run_directory(recipe, run), surge=0)
        return {**values, **one_machine, "run_gib": str(_RUN_GIB)}
    return {**values, "num_nodes": str(launch["num_nodes"])}


def _embedded_sizes(repository: Path) -> dict[str, str]:
    """Return a memory limit in which the rendered pairs fit with the head room of their plan, and a disk."""
    taken = bytes_at_start(repository, "speculative*")
    if not taken:
        print_line(
            f"warning: {repository} is not rendered for this runtime, so limits of memory and disk "
            f"({_LEAST_MEMORY_GIB} and {_RUN_GIB} GiB) may not fit it; run 'make repository', then 'make "
            "deployment' again"
        )
    memory = math.ceil((taken + SERVER_BYTES) / SHARE_USED / _GIB)
    # Files of weights need their size twice (pipelines/executor/weights.py); `taken` is more than that size.
    disk = _RUN_GIB + math.ceil(2 * taken / _GIB)
    return {"memory_gib": str(max(_LEAST_MEMORY_GIB, memory)), "run_gib": str(disk)}


def container_run_directory(recipe: Recipe, run: Path) -> Path:
    """Return the run directory of Compose's server, which is not that of ``make serve``."""
    return run / recipe.name / "container" / recipe.name


def _one_machine(launch: Mapping[str, Any], run_directory: Path, surge: int) -> dict[str, str]:
    """Return the additional values for Compose and for rollout tools, for a server on one machine.

    Args:
        launch: See ``build.rendering.launch.launch_document``.
        run_directory: Run directory of Compose's server.
        surge: Extra pods that may run while one is being replaced.
    """
    return {
        "checkout": str(REPOSITORY_ROOT),
        "packages": str(PACKAGES),
        "run_directory": str(run_directory),
        "container": launch["container"],
        "user": f"{os.getuid()}:{os.getgid()}" if os.getuid() else f"{IMAGE_USER}:{IMAGE_USER}",
        "max_surge": str(surge),
        "max_unavailable": str(1 - surge),
    }


def render_deployment(
    recipe: Recipe,
    run: Path = RUN,
    image: str | None = None,
    templates: Path = TEMPLATES,
    public_key: Path | None = None,
) -> Path:
    """Render every file of a recipe, with the dashboards, and replace the deployment directory.

    Args:
        recipe: The pair and its limits.
        run: Parent of the recipe's run directory.
        image: Image that the cluster pulls; None: the one that Compose builds here.
        templates: Folder with ``template_folders``.
        public_key: PEM file of the key that must have signed packages; None to accept any package.

    Returns:
        ``<run>/<recipe>/deployment``.

    Raises:
        EngineLoadError, RecipeError: See ``template_values``.
        PackageError: The public key cannot be used.
        RepositoryError: A template cannot be rendered, or a value is used by no template.
    """
    values = template_values(recipe, image, run, demands_key=public_key is not None)
    texts = _render(recipe, values, templates)
    if public_key is not None:
        texts[PUBLIC_KEY] = read_public_key(public_key)
    texts["kubernetes/settings.yaml"] = _settings(values["name"], texts)
    if "one_pod" in template_folders(recipe):

        def one_server(others: Mapping[str, str]) -> dict[str, str]:
            given = {name: text for name, text in texts.items() if name == PUBLIC_KEY}
            return _manifests({**_render(recipe, others, templates), **given}, others["name"])

        texts |= fleet_files(templates / "fleet", values, one_server)
    destination = run / recipe.name / "deployment"
    with whole_directory(destination) as staging:
        for name, text in texts.items():
            (staging / name).parent.mkdir(parents=True, exist_ok=True)
            (staging / name).write_text(text, encoding="utf-8")
        shutil.copytree(DASHBOARDS, staging / "grafana")
    if "run_directory" in values:
        Path(values["run_directory"]).mkdir(parents=True, exist_ok=True)  # else Docker makes it, as root
    return destination


def _settings(name: str, texts: Mapping[str, str]) -> str:
    """Return the ConfigMap with the files that servers and HAProxy read; it has no copy in the templates."""
    settings = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": f"{name}-settings",
            "labels": {"app.kubernetes.io/name": "draftproof", "app.kubernetes.io/instance": name},
        },
        "data": {file: text for file, text in texts.items() if file in _SETTINGS_FILES},
    }
    return yaml.safe_dump(settings, sort_keys=False)


def _manifests(texts: Mapping[str, str], name: str) -> dict[str, str]:
    """Return the manifests among some files, by their names."""
    folder = "kubernetes/"
    found = {file.removeprefix(folder): text for file, text in texts.items() if file.startswith(folder)}
    return {**found, "settings.yaml": _settings(name, texts)}


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
            "some values are used by no template",
            values=", ".join(sorted(unused)) or f"no files in {templates}",
            limit="every value must be used",
            remedy="fix pipelines/deploy/templates or build/deployment.py",
        )
    return texts


def _cluster_name(recipe: Recipe) -> str:
    """Return a DNS label that leaves 17 characters for a pod's suffix (``-ranks-<group>-<index>``)."""
    name = "draftproof-" + recipe.name.lower().replace("_", "-")
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,44}[a-z0-9])?", name):
        raise RecipeError(
            "the recipe's name is not valid in Kubernetes",
            values=f"name={recipe.name!r} gives {name!r}",
            limit="at most 46 letters, digits and -, not ending in -",
            remedy="rename the recipe",
        )
    return name


def _gpus_of_a_pod(launch: Mapping[str, Any]) -> int:
    ids = launch["gpu_device_ids"]
    if ids != list(range(len(ids))):
        raise RecipeError(
            "a pod cannot choose its GPUs",
            values=f"gpu_device_ids {ids}",
            limit=f"{list(range(len(ids)))}: the GPUs of a pod are numbered from 0",
            remedy="remove gpu_device_ids from the recipe",
        )
    return len(ids)


def _gpu_memory_gb(gpu: str) -> int:
    """Return the memory in a GPU's name: 80 for ``h100-80gb``."""
    return int(gpu.rpartition("-")[2].removesuffix("gb"))


def _render_and_list(options: argparse.Namespace) -> dict[str, Any]:
    recipe = load_recipe(options.recipe, options.runtime)
    directory = render_deployment(recipe, image=options.image, public_key=options.public_key)
    files = sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())
    return {"directory": str(directory), "files": files}


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the last line of standard output is JSON."""
    parser = recipe_parser("draftproof deployment", "Render the files that deploy a recipe's server.")
    add_runtime(parser)
    parser.add_argument("--image", help="image that the cluster pulls (default: the one built here)")
    add_public_key(parser)
    options = parser.parse_args(arguments)
    return run_command(lambda: _render_and_list(options))


if __name__ == "__main__":
    sys.exit(main())
