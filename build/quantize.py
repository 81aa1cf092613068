"""Quantizes the checkpoints of a recipe: ``python -m build.quantize --recipe demo``.

A role whose recipe asks for what its checkpoint is not yet becomes a TensorRT-LLM checkpoint in
``engines/<recipe>/checkpoints/``; one that is there is not made again. ModelOpt runs in another process
(``build/quantization/modelopt_worker.py``), and what it wrote is compared with the source before it is
moved into place.
"""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from build.checkpoint import read_checkpoint
from build.command_line import add_engines, add_runtime, print_line, recipe_parser, run_command
from build.end_tokens import find_end_ids
from build.exclusive import exclusive
from build.manifest import write_manifest
from build.network import network_from_checkpoint
from build.peers.hugging_face import write_hugging_face
from build.quantization.calibration_text import read_calibration_text
from build.quantization.checks import check_finite, compare
from build.quantization.exported_config import finished_config
from build.quantization.source import DECODER_TYPES, CheckpointSource, read_checkpoint_source
from build.quantized_checkpoint import MODELOPT_VERSION, QuantizedCheckpoint, file_stamps, plan_checkpoint
from build.recipe import REPOSITORY_ROOT, EngineRecipe, Recipe, load_recipe
from build.tokenizer_file import read_tokenizer
from build.whole import put_in_place, scratch_beside
from pipelines.errors import CheckpointError

ROLES = ("draft", "target")
_WORKER = "build.quantization.modelopt_worker"
_PROGRESS = "progress: "
_ORDERED = ("quantization", "kv_cache_dtype", "tp_size", "pp_size", "pad_vocab_size_to")
_PACKAGES = ("nvidia-modelopt", "torch", "transformers", "numpy")
_Report = Callable[[str], None]


def quantize_recipe(
    recipe: Recipe, engines: Path = REPOSITORY_ROOT / "engines", report: _Report = print
) -> dict[str, Path]:
    """Make those quantized checkpoints of a recipe that are not there yet.

    Args:
        recipe: The pair; its ``runtime`` decides the split over GPUs.
        engines: Folder that gets ``<recipe>/checkpoints/<role>-<fingerprint>/``.
        report: Gets one line per stage.

    Returns:
        Role -> the checkpoint that its engine is to be compiled from: the recipe's own where no
        quantization is needed.

    Raises:
        CheckpointError: A source or the text cannot be used, or ModelOpt failed; nothing half-made is left.
        RecipeError: The recipe asks for what does not go together.
        EngineBuildError: The folder cannot be written.
    """
    plans = {role: plan_checkpoint(recipe, role, engines) for role in ROLES}
    found: dict[str, Path] = {}
    for role, plan in plans.items():
        engine: EngineRecipe = getattr(recipe, role)
        if plan is None:
            found[role] = engine.checkpoint_directory
            report(f"{role}: compiled from {engine.checkpoint} as it is")
            continue
        with exclusive(plan.directory.parent):
            if plan.is_made:
                report(f"{role}: {plan.directory.name} is up to date")
            else:
                report(
                    f"{role}: making {plan.directory.name}, {engine.quantization}, from {engine.checkpoint}"
                )
                _make(recipe, plan, report)
        found[role] = plan.directory
    return found


def _make(recipe: Recipe, plan: QuantizedCheckpoint, report: _Report) -> None:
    started_s = time.monotonic()
    try:
        with scratch_beside(plan.directory) as work:
            _make_in(work, recipe, plan, report)
    except OSError as error:
        raise CheckpointError(
            f"the {plan.role}'s quantized checkpoint could not be written",
            values=f"{type(error).__name__}: {error}",
            limit=f"room in {plan.directory.parent} for the checkpoint, and for its source once more if that "
            "is in TensorRT-LLM's form",
            remedy="make room on the disk and run the command again",
        ) from error
    report(f"{plan.role}: {plan.directory.name} made, {time.monotonic() - started_s:.1f} s")


def _make_in(work: Path, recipe: Recipe, plan: QuantizedCheckpoint, report: _Report) -> None:
    """Make a checkpoint in a folder of its own and move it into place."""
    stamps = file_stamps(plan.source)
    versions = _versions()
    check_finite(plan.source)
    end_ids = find_end_ids(plan.source.directory, read_tokenizer(plan.source.directory / "tokenizer.json"))
    source = _as_hugging_face(plan.source, work / "source", end_ids)
    output = work / "checkpoint"
    output.mkdir()
    order: dict[str, Any] = {
        **{key: plan.settings[key] for key in _ORDERED},
        "source": str(source.directory),
        "decoder_type": DECODER_TYPES[source.config["model_type"]],
        "output": str(output),
        "pieces": None,
    }
    about_text = None
    if plan.settings["calibration"] is not None:
        text = read_calibration_text(recipe.tensorrt_llm.calibration, source.directory / "tokenizer.json")
        order["pieces"] = str(work / "pieces.npy")
        np.save(order["pieces"], np.array(text.pieces, np.int32))
        about_text = {"name": text.name, "sha256": text.sha256, "num_tokens": text.num_tokens}
        report(f"{plan.role}: calibrating on {text.num_tokens:,} tokens of {text.name}")
    _run_worker(plan, order, work, report)
    config = _finish(plan, output, source, end_ids, report)
    write_manifest(
        output,
        {
            "fingerprint": plan.fingerprint,
            "role": plan.role,
            "recipe": recipe.name,
            "source": str(plan.source.directory),
            "source_sha256": dict(plan.source_sha256),
            "source_stamps": stamps,
            "settings": dict(plan.settings),
            "calibration_text": about_text,
            "quantization": config["quantization"],
            "packages": versions,
        },
    )
    if file_stamps(plan.source) != stamps:
        raise CheckpointError(
            f"{plan.source.directory} changed while it was quantized",
            values=plan.directory.name,
            limit="a source stays as it is until its checkpoint is made",
            remedy="run the command again",
        )
    put_in_place(output, plan.directory)


def _versions() -> dict[str, str]:
    """Versions of what will run."""
    try:
        versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
    except importlib.metadata.PackageNotFoundError as error:
        raise CheckpointError(
            "quantizing needs packages that are not installed",
            values=str(error),
            limit=f"nvidia-modelopt {MODELOPT_VERSION}, torch and transformers, as in requirements/build.txt",
            remedy="run make quantize, which installs them, or install requirements/build.txt and torch.txt",
        ) from None
    if versions["nvidia-modelopt"] != MODELOPT_VERSION:
        raise CheckpointError(
            "another version of ModelOpt is installed",
            values=f"nvidia-modelopt {versions['nvidia-modelopt']}",
            limit=f"{MODELOPT_VERSION}: its output was checked, that of others may differ",
            remedy="install requirements/build.txt",
        )
    return versions


def _as_hugging_face(source: CheckpointSource, directory: Path, end_ids: Sequence[int]) -> CheckpointSource:
    """The source in Hugging Face's form, written to ``directory`` if it is not yet."""
    if source.is_hugging_face:
        return source
    network = network_from_checkpoint(read_checkpoint(source.directory))
    write_hugging_face(directory, network, source.directory / "tokenizer.json", end_ids)
    return read_checkpoint_source(directory)


def _run_worker(plan: QuantizedCheckpoint, order: dict[str, Any], work: Path, report: _Report) -> None:
    """Run ModelOpt; its progress is reported, all else it prints is kept in a file beside the checkpoint."""
    order_path = work / "order.json"
    order_path.write_text(json.dumps(order), encoding="utf-8")
    log_path = plan.directory.parent / f"{plan.role}.log"
    last: deque[str] = deque(maxlen=1)
    command = [sys.executable, "-m", _WORKER, str(order_path)]
    with (
        log_path.open("w", encoding="utf-8") as log,
        subprocess.Popen(
            command,
            cwd=REPOSITORY_ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as worker,
    ):
        try:
            assert worker.stdout is not None
            for line in worker.stdout:
                log.write(line)
                if line.startswith(_PROGRESS):
                    report(f"{plan.role}: {line.removeprefix(_PROGRESS).strip()}")
                elif line.strip():
                    last.append(line.strip())
        except BaseException:
            worker.kill()  # or leaving the block would wait for its hours to end
            raise
    if worker.returncode != 0:
        killed = worker.returncode < 0
        raise CheckpointError(
            f"ModelOpt could not quantize the {plan.role}",
            values=f"killed by signal {-worker.returncode}" if killed else "; ".join(last),
            limit=f"its output is in {log_path}",
            remedy="a kill usually means too little memory: use a machine with more, or a smaller model"
            if killed
            else "read the log; the source may be damaged, or the disk full",
        )


def _finish(
    plan: QuantizedCheckpoint,
    output: Path,
    source: CheckpointSource,
    end_ids: Sequence[int],
    report: _Report,
) -> dict[str, Any]:
    """Correct ``config.json``, add the tokenizer, and compare the weights with the source's."""
    config_path = output / "config.json"
    exported = json.loads(config_path.read_text(encoding="utf-8"))
    config = finished_config(exported, source, str(plan.settings["quantization"]), end_ids)
    config_path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (output / "quant_cfg.json").unlink(missing_ok=True)  # of mixed precision; ModelOpt writes it for none too
    shutil.copyfile(source.directory / "tokenizer.json", output / "tokenizer.json")
    measured = compare(output, config, source)
    report(
        f"{plan.role}: largest relative error of a projection {measured.largest_error:.2%} "
        f"({measured.projection})"
    )
    if measured.largest_kv_scale is not None:
        report(
            f"{plan.role}: FP8 KV scales up to {measured.largest_kv_scale:.3g}; ModelOpt's export raises "
            "smaller ones to 1"
        )
    if config["vocab_size"] != source.config["vocab_size"]:
        report(
            f"{plan.role}: the vocabulary was padded from {source.config['vocab_size']} to "
            f"{config['vocab_size']}, which the other role must be too"
        )
    return config


def main(arguments: list[str] | None = None) -> int:
    """Command line; the last line of standard output is JSON: role -> checkpoint, and ``seconds``."""
    parser = recipe_parser("build.quantize", "Quantize the checkpoints of a recipe.")
    add_runtime(parser)
    add_engines(parser)
    options = parser.parse_args(arguments)
    started_s = time.monotonic()

    def work() -> dict[str, Any]:
        found = quantize_recipe(load_recipe(options.recipe, options.runtime), options.engines, print_line)
        seconds = round(time.monotonic() - started_s, 2)
        return {**{role: str(path) for role, path in found.items()}, "seconds": seconds}

    return run_command(work)


if __name__ == "__main__":
    sys.exit(main())
