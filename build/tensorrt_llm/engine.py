"""Compile a pair with ``trtllm-build``.

An engine directory contains NVIDIA's ``config.json`` and ``rank*.engine``, ``tokenizer.json``, and our
manifest, which is written last. It is built in a temporary directory, compared with the recipe, and renamed.
A failed or killed build therefore leaves a log, but no directory that could be taken for an engine.
"""

from __future__ import annotations

import shlex
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from build.checkpoints.engine_texts import engine_text_digests, write_engine_texts
from build.files import EnginePlan, exclusive, new_engine, plan_engine, write_manifest
from build.quantization.quantized_checkpoint import checkpoint_for
from build.recipe import Recipe
from build.tensorrt_llm.check import check_built, check_pair, differences, refuse
from build.tensorrt_llm.command import (
    Builder,
    Paths,
    build_command,
    engine_flags,
    find_builder,
    run_logged,
    tail,
)
from build.tensorrt_llm.pair import Pair, Side, read_pair
from build.tensorrt_llm.rules.rule import Finding
from pipelines.errors import CheckpointError, EngineBuildError, EngineLoadError
from pipelines.manifest import checked_engine, read_manifest, sha256_file

Report = Callable[[str], None]


def _checkpoint_files(side: Side, directory: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a checkpoint, from its manifest if it has one: it may have 400 GB.

    Raises:
        CheckpointError: A file is missing, or does not have the size in the manifest.
    """
    names = ["config.json", "tokenizer.json"]
    names += [f"rank{rank}.safetensors" for rank in range(side.config.world_size)]
    manifest = read_manifest(directory)
    listed = manifest["files"] if manifest is not None else {}
    for name in names:
        path = directory / name
        size = path.stat().st_size if path.is_file() else None
        if size is None or (manifest is not None and listed.get(name, {}).get("bytes") != size):
            raise CheckpointError(
                f"{path} has {size} bytes, and its manifest says otherwise"
                if size is not None
                else f"{path} does not "
                f"exist, one of tp_size x pp_size = {side.config.world_size} files of weights",
                "run draftproof quantize again, or export the checkpoint again",
            )
    if manifest is None:
        return {name: sha256_file(directory / name) for name in names}
    return {name: str(listed[name]["sha256"]) for name in names}


def _build_settings(pair: Pair, side: Side) -> dict[str, Any]:
    """Return everything but the checkpoint that decides an engine's content."""
    section = pair.recipe.tensorrt_llm
    return {
        "role": side.role,
        "runtime": "tensorrt_llm",
        "version": section.version,
        "gpu": section.gpu,
        "flags": engine_flags(pair, side),
        "quant_algo": side.config.quant_algo,
        "end_ids": list(side.end_ids),
    }


def _without_checkpoint(identity: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in identity.items() if key != "checkpoint"}


def _plan(pair: Pair, side: Side, checkpoint: Path, engines: Path) -> EnginePlan:
    files = {**_checkpoint_files(side, checkpoint), **engine_text_digests(side.texts)}
    identity = {**_build_settings(pair, side), "checkpoint": files}
    return plan_engine(engines / pair.recipe.name, side.role, identity)


def find_engines(pair: Pair, engines: Path) -> dict[str, Path]:
    """Return the newest existing engine of each role, from any checkpoint."""
    found: dict[str, Path] = {}
    for side in pair.sides:
        manifests = (engines / pair.recipe.name).glob(f"{side.role}-*/manifest.json")
        for path in sorted(manifests, key=lambda path: path.stat().st_mtime):
            manifest = read_manifest(path.parent) or {}
            identity = manifest.get("identity")
            if isinstance(identity, dict) and _without_checkpoint(identity) == _build_settings(pair, side):
                found[side.role] = path.parent
    return found


def _timing_cache(pair: Pair, engines: Path) -> Path:
    """Return the timing cache for a GPU and version, with which two builds choose the same kernels."""
    section = pair.recipe.tensorrt_llm
    return engines / pair.recipe.name / f"timing-{section.gpu}-{section.version}.cache"


def _manifest(
    pair: Pair, side: Side, plan: EnginePlan, builder: Builder, command: list[str]
) -> dict[str, Any]:
    section = pair.recipe.tensorrt_llm
    return {
        "fingerprint": plan.fingerprint,
        "runtime": "tensorrt_llm",
        "tensorrt_llm_version": section.version,
        "gpu": section.gpu,
        "container": builder.image,
        "command": command,
        "recipe": pair.recipe.name,
        "recipe_sha256": sha256_file(pair.recipe.path),
        "tokenizer_sha256": plan.identity["checkpoint"]["tokenizer.json"],
        "tokenizer_identity_sha256": side.tokenizer.sha256,
        "end_ids": list(side.end_ids),
        "identity": plan.identity,
    }


def _build(pair: Pair, side: Side, plan: EnginePlan, checkpoint: Path, lock: TextIO, report: Report) -> None:
    """Build one engine atomically.

    Raises:
        EngineBuildError: The build failed, or its result does not match the recipe.
        CheckpointError: The checkpoint's files do not match its manifest.
    """
    builder = find_builder(pair.recipe)
    folder = plan.directory.parent
    log = folder / f"{plan.directory.name}.log"
    try:
        with new_engine(plan.directory) as (engine, work):
            kept, new = _timing_cache(pair, folder.parent), work / "timing.cache"
            paths = Paths(checkpoint, engine, kept if kept.is_file() else None, new)
            command = build_command(pair, side, paths)
            readable = [checkpoint] if paths.timing_cache is None else [checkpoint, kept]
            report(f"{side.role}: {builder.note}; log in {log}")
            _run(side, builder.wrap(command, readable, [work]), log, lock)
            different = differences(pair, side, engine)
            if different:
                raise EngineBuildError(
                    f"trtllm-build built a {side.role} that does not match recipe {pair.recipe.name}: "
                    f"{'; '.join(different)}",
                    f"read the warnings in {log}; check that version and GPU are the recipe's",
                )
            shutil.copyfile(checkpoint / "tokenizer.json", engine / "tokenizer.json")
            write_engine_texts(engine, side.texts)
            write_manifest(engine, _manifest(pair, side, plan, builder, command))
            if new.is_file():
                new.replace(kept)
    except OSError as error:
        raise EngineBuildError(
            f"the {side.role} engine of recipe {pair.recipe.name} could not be written to {folder}: "
            f"{type(error).__name__}: {error}",
            "check the disk; no partial engine was left",
        ) from error


def _run(side: Side, command: list[str], log: Path, lock: TextIO) -> None:
    code = run_logged(command, log, lock)
    if code == 0:
        return
    ended = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    raise EngineBuildError(
        f"{command[0]} failed on the {side.role}: {ended}; {tail(log)}",
        f"read {log}; SIGKILL and exit code 137 usually mean too little memory",
    )


def _check_hashes(checkpoint: Path) -> None:
    """Check the hashes of a checkpoint, because a build takes hours; elsewhere, sizes are checked.

    Raises:
        CheckpointError: A file has changed since the checkpoint was written.
    """
    if read_manifest(checkpoint) is None:
        return
    try:
        checked_engine(checkpoint)
    except EngineLoadError as error:
        raise CheckpointError(
            f"{checkpoint} has changed since it was written: {error.message}", "run draftproof quantize again"
        ) from None


def _report_and_check(pair: Pair, found: list[Finding], report: Report) -> None:
    for finding in found:
        report(str(finding))
    if found:
        raise refuse(pair, found)


def build_tensorrt_llm_engines(recipe: Recipe, engines: Path, report: Report = print) -> dict[str, Any]:
    """Build those engines of a recipe that do not exist yet.

    Args:
        recipe: The pair, whose runtime is ``tensorrt_llm``.
        engines: Folder in which ``<recipe>/<role>-<fingerprint>/`` is created.
        report: Called with one line per stage.

    Returns:
        ``draft`` and ``target`` (directories), ``built`` (roles that were built) and ``seconds``.

    Raises:
        IncompatiblePairError: The pair violates a rule of preflight; nothing has been built.
        CheckpointError: A checkpoint is missing, has changed, or is not quantized yet.
        EngineBuildError: ``trtllm-build`` was not found or failed.
    """
    started = time.monotonic()
    pair = read_pair(recipe, engines)
    _report_and_check(pair, check_pair(pair), report)
    checkpoints = {side.role: checkpoint_for(recipe, side.role, engines) for side in pair.sides}
    directories: dict[str, Path] = {}
    built = []
    for side in pair.sides:
        checkpoint = checkpoints[side.role]
        plan = _plan(pair, side, checkpoint, engines)
        directories[side.role] = plan.directory
        if plan.is_built():
            report(f"{side.role}: {plan.directory.name} is up to date")
            continue
        with exclusive(engines / recipe.name) as lock:  # locked only to build
            if plan.is_built():
                continue  # another process has built it meanwhile
            _check_hashes(checkpoint)
            report(f"{side.role}: building {plan.directory.name} from {checkpoint}")
            before = time.monotonic()
            _build(pair, side, plan, checkpoint, lock, report)
            report(f"{side.role}: {time.monotonic() - before:.0f} s")
            built.append(side.role)
    _report_and_check(pair, check_built(pair, directories), report)
    return {
        **{role: str(directory) for role, directory in directories.items()},
        "built": built,
        "seconds": round(time.monotonic() - started, 2),
    }


def print_commands(recipe: Recipe, engines: Path, report: Report = print) -> None:
    """Print the commands of a build, without a GPU, weights or a container runtime.

    FINGERPRINT stands for the hash of the quantized checkpoint.

    Raises:
        CheckpointError: A ``config.json`` or ``tokenizer.json`` is missing.
        IncompatiblePairError: The pair violates a rule of preflight.
    """
    pair = read_pair(recipe, engines)
    _report_and_check(pair, check_pair(pair), report)
    folder = engines / recipe.name
    if any(side.checkpoint is None for side in pair.sides):
        report(f"draftproof quantize --recipe {recipe.argument} --runtime tensorrt_llm")
    cache = _timing_cache(pair, engines)
    for side in pair.sides:
        checkpoint = side.checkpoint or folder / "checkpoints" / f"{side.role}-FINGERPRINT"
        output = folder / f"{side.role}-FINGERPRINT"
        paths = Paths(checkpoint, output, cache if cache.is_file() else None, cache)
        report(shlex.join(build_command(pair, side, paths)))
