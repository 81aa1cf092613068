"""Builds the engines of a recipe: ``python -m build.engines --recipe demo``.

Engines are addressed by content: a directory's name ends in the hash of everything that decides what
is inside, so an engine that is there need not be built again, and two versions live side by side.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from build.command_line import add_engines, add_runtime, print_line, recipe_parser, run_command
from build.engine_directory import EnginePlan, plan_engine
from build.exclusive import exclusive
from build.growth import grow
from build.manifest import sha256_file
from build.network import network_from_checkpoint
from build.openvino_engine import (
    FORMAT_VERSION,
    EngineSettings,
    openvino_version,
    write_engine,
)
from build.preflight import EngineSource, check_recipe
from build.recipe import REPOSITORY_ROOT, EngineRecipe, Recipe, load_recipe
from build.tensorrt_llm_engine import build_tensorrt_llm_engines, print_commands
from build.weight_only import apply_quantization
from pipelines.errors import RecipeError

_CHECKPOINT_FILES = ("config.json", "rank0.safetensors", "tokenizer.json")
# Sources that decide the numbers in an engine. Hashing them costs a needless build now and then; a
# version number that somebody forgets to raise costs an engine that is not what its recipe says.
_HERE = Path(__file__).resolve().parent
_COMPILER = (
    "checkpoint.py",
    "checkpoint_config.py",
    "growth.py",
    "linear.py",
    "llama_graph.py",
    "network.py",
    "openvino_engine.py",
    "stored_linear.py",
    "tensor_file.py",
    "weight_only.py",
)


def _identity(role: str, engine: EngineRecipe, source: EngineSource) -> dict[str, Any]:
    """Everything that decides the content of an engine directory.

    The checkpoint counts by content, not by path, and the number of KV blocks is the server's business.
    """
    section = dataclasses.asdict(engine)
    del section["checkpoint"], section["tensorrt_llm"]
    section["kv_cache"] = engine.kv_cache.dtype
    return {
        "role": role,
        "section": section,
        "checkpoint": {name: sha256_file(source.checkpoint.directory / name) for name in _CHECKPOINT_FILES},
        "end_ids": list(source.end_ids),
        "format_version": FORMAT_VERSION,
        "compiler_sha256": {name: sha256_file(_HERE / name) for name in _COMPILER},
        "openvino_version": openvino_version(),
    }


def _plan(recipe: Recipe, role: str, engine: EngineRecipe, source: EngineSource, engines: Path) -> EnginePlan:
    return plan_engine(engines / recipe.name, role, _identity(role, engine, source))


def _build(recipe: Recipe, plan: EnginePlan, engine: EngineRecipe, source: EngineSource) -> None:
    network = network_from_checkpoint(source.checkpoint)
    if engine.growth is not None:
        network = grow(network, engine.growth)
    write_engine(
        plan.directory,
        apply_quantization(network, engine.quantization, engine.lm_head),
        source.tokenizer_path,
        EngineSettings(
            role=plan.role,
            recipe=recipe.name,
            quantization=engine.quantization,
            kv_cache_dtype=engine.kv_cache.dtype,
            num_threads=engine.num_threads,
            thread_placement=engine.thread_placement,
            end_ids=source.end_ids,
            fingerprint=plan.fingerprint,
            # A GPU leaves activations alone where the checkpoint has no scale for them.
            dynamic_quantization=engine.quantization == "int8",
            origin={
                "recipe": recipe.name,
                "recipe_sha256": sha256_file(recipe.path),
                "tokenizer_identity_sha256": source.tokenizer.sha256,
                "identity": plan.identity,
            },
        ),
    )


def build_engines(
    recipe: Recipe, engines: Path = REPOSITORY_ROOT / "engines", report: Callable[[str], None] = print
) -> dict[str, Any]:
    """Build those engines of a recipe that are not there yet, for the runtime that it names.

    Args:
        recipe: The pair.
        engines: Folder that gets ``<recipe>/<role>-<fingerprint>/``.
        report: Gets one line per stage.

    Returns:
        ``draft`` and ``target`` (directories), ``built`` (roles that were built now) and ``seconds``.

    Raises:
        CheckpointError, RecipeError, IncompatiblePairError: Nothing has been built.
        EngineBuildError: Compiling or writing failed.
    """
    if recipe.runtime == "tensorrt_llm":
        return build_tensorrt_llm_engines(recipe, engines, report)
    started = time.monotonic()
    sources = dict(zip(("draft", "target"), check_recipe(recipe, engines), strict=True))
    result: dict[str, Any] = {}
    built = []
    for role, source in sources.items():
        engine: EngineRecipe = getattr(recipe, role)
        plan = _plan(recipe, role, engine, source, engines)
        result[role] = str(plan.directory)
        if plan.is_built():
            report(f"{role}: {plan.directory.name} is up to date")
            continue
        with exclusive(engines / recipe.name):  # who builds nothing writes nothing, not even a lock
            if plan.is_built():
                continue  # by another builder, meanwhile
            report(f"{role}: building {plan.directory.name} from {engine.checkpoint}")
            before = time.monotonic()
            _build(recipe, plan, engine, source)
            description = json.loads((plan.directory / "engine.json").read_text(encoding="utf-8"))
            report(
                f"{role}: {description['num_parameters'] / 1e6:.1f} M parameters, "
                f"{description['weight_bytes_per_step'] / 1e6:.1f} MB of weights per step, "
                f"{time.monotonic() - before:.1f} s"
            )
            built.append(role)
    return {**result, "built": built, "seconds": round(time.monotonic() - started, 2)}


def _build_or_print(options: argparse.Namespace) -> dict[str, Any] | None:
    recipe = load_recipe(options.recipe, options.runtime)
    if not options.dry_run:
        return build_engines(recipe, options.engines, print_line)
    if recipe.runtime != "tensorrt_llm":
        raise RecipeError(
            "there is no command to print",
            values=f"--dry-run, runtime {recipe.runtime}",
            limit="trtllm-build is a command of its own; the embedded runtime compiles in this process",
            remedy="leave --dry-run out, or give RUNTIME=tensorrt_llm",
        )
    print_commands(recipe, options.engines)
    return None


def main(arguments: list[str] | None = None) -> int:
    """Command line; the last line of standard output is JSON, but for ``--dry-run``."""
    parser = recipe_parser("build.engines", "Build the engines of a recipe.")
    add_engines(parser)
    add_runtime(parser)
    parser.add_argument("--dry-run", action="store_true", help="print the commands of trtllm-build, run none")
    options = parser.parse_args(arguments)
    return run_command(lambda: _build_or_print(options))


if __name__ == "__main__":
    sys.exit(main())
