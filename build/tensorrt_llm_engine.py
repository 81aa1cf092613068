"""Compiles a pair with ``trtllm-build``, the only place that runs it.

An engine directory is NVIDIA's, ``config.json`` and ``rank*.engine``, with ``tokenizer.json`` beside them and
our manifest, written last. It is built under another name, compared with the recipe and then renamed, so
a failed or killed build leaves a log and nothing that a later step would take for an engine.
"""

from __future__ import annotations

import shlex
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from build.engine_directory import EnginePlan, plan_engine
from build.exclusive import exclusive
from build.manifest import read_manifest, sha256_file, verify_manifest, write_manifest
from build.quantized_checkpoint import checkpoint_for
from build.recipe import Recipe
from build.tensorrt_llm.builder import Builder, find_builder, run_logged, tail
from build.tensorrt_llm.built import check_built, differences
from build.tensorrt_llm.checks import WARNINGS, check_pair, refuse
from build.tensorrt_llm.command import Paths, build_command, engine_flags
from build.tensorrt_llm.pair import Pair, Side, read_pair
from build.tensorrt_llm.rules import Finding, findings
from build.whole import put_in_place, scratch_beside
from pipelines.errors import CheckpointError, EngineBuildError, EngineLoadError

Report = Callable[[str], None]


def _checkpoint_files(side: Side, directory: Path) -> dict[str, str]:
    """SHA-256 of each file of a checkpoint; from its manifest, if it has one, for it may hold 400 GB.

    Raises:
        CheckpointError: A file is missing, or is not of the size that the manifest says.
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
                f"{path} is {'missing' if size is None else 'not the file that was written'}",
                values=f"{size} bytes" if size is not None else "no such file",
                limit=f"tp_size x pp_size = {side.config.world_size} files of weights, as config.json says",
                remedy="run make quantize again, or export the checkpoint again",
            )
    if manifest is None:
        return {name: sha256_file(directory / name) for name in names}
    return {name: str(listed[name]["sha256"]) for name in names}


def _asked(pair: Pair, side: Side) -> dict[str, Any]:
    """What decides an engine's content, beside the checkpoint."""
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
    identity = {**_asked(pair, side), "checkpoint": _checkpoint_files(side, checkpoint)}
    return plan_engine(engines / pair.recipe.name, side.role, identity)


def find_engines(pair: Pair, engines: Path) -> dict[str, Path]:
    """Engines of a recipe that are there, by role, from whichever checkpoint; the newest of each."""
    found: dict[str, Path] = {}
    for side in pair.sides:
        manifests = (engines / pair.recipe.name).glob(f"{side.role}-*/manifest.json")
        for path in sorted(manifests, key=lambda path: path.stat().st_mtime):
            manifest = read_manifest(path.parent) or {}
            identity = manifest.get("identity")
            if isinstance(identity, dict) and _without_checkpoint(identity) == _asked(pair, side):
                found[side.role] = path.parent
    return found


def _timing_cache(pair: Pair, engines: Path) -> Path:
    """Measured tactics of one GPU and version: two builds with them choose the same kernels."""
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
    """Build one engine, whole or not at all.

    Raises:
        EngineBuildError: The builder failed, or made something else than it was asked for.
        CheckpointError: The checkpoint's manifest does not fit its files.
    """
    builder = find_builder(pair.recipe)
    folder = plan.directory.parent
    log = folder / f"{plan.directory.name}.log"
    try:
        with scratch_beside(plan.directory) as work:
            engine = work / "engine"
            engine.mkdir()
            kept, new = _timing_cache(pair, folder.parent), work / "timing.cache"
            paths = Paths(checkpoint, engine, kept if kept.is_file() else None, new)
            command = build_command(pair, side, paths)
            readable = [checkpoint] if paths.timing_cache is None else [checkpoint, kept]
            report(f"{side.role}: {builder.note}; log in {log}")
            _run(side, builder.wrap(command, readable, [work]), log, lock)
            different = differences(pair, side, engine)
            if different:
                raise EngineBuildError(
                    f"trtllm-build made another {side.role} than it was asked for",
                    values="; ".join(different),
                    limit=f"as recipe {pair.recipe.name} says",
                    remedy=f"read the warnings in {log}; a version or GPU other than the recipe's does this",
                )
            shutil.copyfile(checkpoint / "tokenizer.json", engine / "tokenizer.json")
            write_manifest(engine, _manifest(pair, side, plan, builder, command))
            if new.is_file():
                new.replace(kept)
            put_in_place(engine, plan.directory)
    except OSError as error:
        raise EngineBuildError(
            f"the {side.role} engine of recipe {pair.recipe.name} could not be written",
            values=f"{type(error).__name__}: {error}",
            limit=f"room and write access in {folder}",
            remedy="check the disk; nothing half-built was left",
        ) from error


def _run(side: Side, command: list[str], log: Path, lock: TextIO) -> None:
    code = run_logged(command, log, lock)
    if code == 0:
        return
    ended = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    raise EngineBuildError(
        f"{command[0]} failed on the {side.role}",
        values=f"{ended}; {tail(log)}",
        limit=f"the whole log is {log}",
        remedy="mend what its last lines say; SIGKILL and 137 are usually a lack of memory",
    )


def _verified(checkpoint: Path) -> None:
    """Hash the checkpoint before hours are spent on it; at other times its sizes are enough.

    Raises:
        CheckpointError: A file was changed since the checkpoint was written.
    """
    if read_manifest(checkpoint) is None:
        return
    try:
        verify_manifest(checkpoint)
    except EngineLoadError as error:
        raise CheckpointError(
            f"{checkpoint} was changed since it was written",
            values=error.what,
            limit="a checkpoint is compiled as it was quantized",
            remedy="run make quantize again",
        ) from None


def _passed(pair: Pair, found: list[Finding], report: Report) -> None:
    for finding in found:
        report(str(finding))
    if found:
        raise refuse(pair, found)


def build_tensorrt_llm_engines(recipe: Recipe, engines: Path, report: Report = print) -> dict[str, Any]:
    """Build those engines of a recipe that are not there yet.

    Args:
        recipe: The pair, whose runtime is ``tensorrt_llm``.
        engines: Folder that gets ``<recipe>/<role>-<fingerprint>/``.
        report: Gets one line per stage.

    Returns:
        ``draft`` and ``target`` (directories), ``built`` (roles that were built now) and ``seconds``.

    Raises:
        IncompatiblePairError: The pre-flight found something; nothing has been built.
        CheckpointError: A checkpoint is missing, not quantized yet, or was changed.
        EngineBuildError: There is no builder, or it failed.
    """
    started = time.monotonic()
    pair = read_pair(recipe, engines)
    for warning in findings(pair, WARNINGS):
        report(f"warning: {warning}")
    _passed(pair, check_pair(pair), report)
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
        with exclusive(engines / recipe.name) as lock:  # who builds nothing writes nothing, not even a lock
            if plan.is_built():
                continue  # by another builder, meanwhile
            _verified(checkpoint)
            report(f"{side.role}: building {plan.directory.name} from {checkpoint}")
            before = time.monotonic()
            _build(pair, side, plan, checkpoint, lock, report)
            report(f"{side.role}: {time.monotonic() - before:.0f} s")
            built.append(side.role)
    _passed(pair, check_built(pair, directories), report)
    return {
        **{role: str(directory) for role, directory in directories.items()},
        "built": built,
        "seconds": round(time.monotonic() - started, 2),
    }


def print_commands(recipe: Recipe, engines: Path, report: Report = print) -> None:
    """Print what a build would run; needs neither a GPU nor weights nor a container runtime.

    FINGERPRINT stands where a hash of the quantized checkpoint goes.

    Raises:
        CheckpointError: A ``config.json`` or ``tokenizer.json`` is missing.
        IncompatiblePairError: The pre-flight found something.
    """
    pair = read_pair(recipe, engines)
    _passed(pair, check_pair(pair), report)
    folder = engines / recipe.name
    if any(side.checkpoint is None for side in pair.sides):
        report(f"make quantize RECIPE={recipe.name} RUNTIME=tensorrt_llm")
    cache = _timing_cache(pair, engines)
    for side in pair.sides:
        checkpoint = side.checkpoint or folder / "checkpoints" / f"{side.role}-FINGERPRINT"
        output = folder / f"{side.role}-FINGERPRINT"
        paths = Paths(checkpoint, output, cache if cache.is_file() else None, cache)
        report(shlex.join(build_command(pair, side, paths)))
