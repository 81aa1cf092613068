"""Render ``model_repository/`` for a recipe: ``python -m build.repository --recipe demo``.

The result is ``.run/<recipe>/model_repository/``, which is replaced atomically. With ``--package``, the pair
is that of a package, which is checked first; nothing is built.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from build.built_pair import build_pair
from build.command_line import add_public_key, add_runtime, print_line, recipe_parser, run_command
from build.digests import known_engine
from build.package import read_package
from build.recipe import DefaultSampling, Recipe, load_recipe
from build.rendering.kv_blocks import returned_bytes, with_kv_blocks
from build.rendering.rendered_pair import RenderedPair
from build.rendering.templates import TEMPLATES, render_repository
from build.tensorrt_llm.memory_plan import MemoryPlan
from pipelines.available_resources import available_bytes
from pipelines.deploy.triton.launch import Launch, PackageOrigin
from pipelines.deploy.triton.pair_record import LOOP, PairRecord
from pipelines.errors import RecipeError, RepositoryError, ServerStartError
from pipelines.places import CODE, RUN
from pipelines.socket_path import is_listening


def render_recipe(
    recipe: Recipe,
    draft_engine: Path | None,
    target_engine: Path,
    run: Path = RUN,
    memory: MemoryPlan | None = None,
    free: Callable[[], float] = available_bytes,
    package: PackageOrigin | None = None,
    name: str | None = None,
    default_sampling: DefaultSampling | None = None,
    served_model_name: str = "",
) -> Path:
    """Check the engines of a recipe against their hashes and render its repository.

    Args:
        recipe: The pair.
        draft_engine: Engine directory of the draft; None without a draft.
        target_engine: Engine directory of the target.
        run: Parent of the recipe's run directory, to which ``launch.json`` is written too.
        memory: How the engines share their GPUs; required on TensorRT-LLM.
        free: Returns the bytes that a server may use, on the embedded runtime.
        package: The package that holds the engines; None for engines of this checkout.
        name: Name of the run directory; None: the recipe's.
        default_sampling: What an option sets instead of the recipe.
        served_model_name: Name that clients send as ``model``; "" for the recipe's.

    Returns:
        ``<run>/<name>/model_repository``.

    Raises:
        EngineLoadError: A file of an engine is missing or has changed since the build.
        RecipeError: The memory does not hold the pair.
        RepositoryError: See ``render_repository``.
    """
    destination = run / (name or recipe.name) / "model_repository"
    draft = None if draft_engine is None else known_engine(draft_engine)
    pair = RenderedPair(
        recipe,
        draft,
        known_engine(target_engine),
        destination.parent.resolve(),
        memory,
        served_model_name=served_model_name,
    )
    loop = destination / LOOP
    pair = with_kv_blocks(pair, loop, lambda: free() + returned_bytes(loop))
    render_repository(TEMPLATES, recipe.runtime, pair.values, destination)
    pair.record.write(loop)
    launch_of(recipe, package, default_sampling).write(destination.parent)
    return destination


def launch_of(
    recipe: Recipe, package: PackageOrigin | None = None, default_sampling: DefaultSampling | None = None
) -> Launch:
    """Return how to start the server of a recipe that has passed preflight."""
    chosen = (("serve", default_sampling), ("recipe", recipe.serving.default_sampling))
    sampling = {source: given.values for source, given in chosen if given is not None and given.values}
    if recipe.runtime == "embedded":
        return Launch(package=package, default_sampling=sampling)
    gpus = {gpu for engine in recipe.engines.values() for gpu in engine.tensorrt_llm.gpus}
    return Launch(recipe.runtime, recipe.tensorrt_llm.container, tuple(sorted(gpus)), package, sampling)


def _render(options: argparse.Namespace) -> dict[str, Any]:
    sampling = DefaultSampling.of_option(options.default_sampling)
    package = None if options.package is None else read_package(options.package, options.public_key)
    recipe = package.pair.recipe if package else load_recipe(options.recipe, options.runtime)
    if options.check_recipe:
        return {"recipe": recipe.name}
    pair = package.pair if package else build_pair(recipe, print_line)
    recipe = with_prompt_cache(pair.recipe, options.prompt_cache_dir, options.prompt_cache_gb)
    engines = pair.draft_engine, pair.target_engine
    origin = None
    run = (options.run_directory or RUN / pair.recipe.name).resolve()
    if package is not None:
        origin = PackageOrigin(str(package.directory), package.sha256)
        if not options.replace:
            _check_not_in_use(run, origin)
    destination = render_recipe(
        recipe,
        *engines,
        run.parent,
        pair.memory,
        package=origin,
        name=run.name,
        default_sampling=sampling,
        served_model_name=options.served_model_name,
    )
    if package is not None:
        package.check_rendered(PairRecord.read(destination / LOOP))
    return {"model_repository": str(destination), "recipe": pair.recipe.name}


def with_prompt_cache(recipe: Recipe, folder: str, gigabytes: str) -> Recipe:
    """Return a recipe with the prompt cache that options of ``draftproof serve`` set; "" keeps the recipe's.

    Raises:
        RecipeError: The size is none.
    """
    serving = recipe.serving
    if folder:
        serving = replace(serving, prompt_cache_dir=folder)
    if gigabytes:
        try:
            size = float(gigabytes)
        except ValueError:
            size = math.nan
        if not 0 <= size < math.inf:
            raise RecipeError(
                f"--prompt-cache-gb={gigabytes!r} is not a number of gigabytes",
                "write a number such as 20, or 0 for no prompt cache on disk",
            )
        serving = replace(serving, prompt_cache_gb=size)
    return replace(recipe, serving=serving)


def _check_not_in_use(run_directory: Path, package: PackageOrigin) -> None:
    """Refuse a run directory whose server serves something else than a package.

    Raises:
        RepositoryError: A server uses the directory.
    """
    if _rendered_from(run_directory) == package.sha256:
        return
    try:
        socket = CODE / PairRecord.read(run_directory / "model_repository" / LOOP).socket
    except RepositoryError:  # there is none, or one of another version
        return
    if is_listening(socket):
        raise RepositoryError(
            f"a server uses {run_directory} with another pair than {package.directory}",
            f"stop it ('draftproof stop --recipe {run_directory.name}') before you serve another one",
        )


def _rendered_from(run_directory: Path) -> str | None:
    """Return the digest of the package that a directory was rendered from; None if of none."""
    try:
        package = Launch.read(run_directory).package
    except ServerStartError:  # another version wrote it
        return None
    return None if package is None else package.sha256


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the last line of standard output is JSON."""
    parser = recipe_parser(
        "draftproof repository", "Build a recipe's engines and render its model repository."
    )
    add_runtime(parser)
    parser.add_argument(
        "--package", type=Path, metavar="DIRECTORY", help="render the pair of a package, and build nothing"
    )
    add_public_key(parser)
    parser.add_argument(
        "--run-directory",
        type=Path,
        help="render for this run directory (default: .run/<recipe>)",
    )
    parser.add_argument(
        "--served-model-name", default="", help="name that clients send as model (default: the recipe's)"
    )
    parser.add_argument(
        "--default-sampling",
        default="",
        metavar="NAME=VALUE,...",
        help="sampling parameters of requests that send none (default: the recipe's)",
    )
    parser.add_argument(
        "--prompt-cache-dir", default="", metavar="DIRECTORY", help="see serve (default: the recipe's)"
    )
    parser.add_argument(
        "--prompt-cache-gb", default="", metavar="NUMBER", help="see serve (default: the recipe's)"
    )
    parser.add_argument(
        "--replace",
        action="store_true",
        help="replace the pair of a server that is running; it loads the new one at SIGHUP",
    )
    parser.add_argument("--check-recipe", action="store_true", help="read the recipe, and do nothing else")
    options = parser.parse_args(arguments)
    return run_command(lambda: _render(options))


if __name__ == "__main__":
    sys.exit(main())
