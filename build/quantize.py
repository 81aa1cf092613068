"""Quantize the checkpoints of a recipe: ``python -m build.quantize --recipe demo``.

If the recipe asks for a quantization that a checkpoint does not have, a quantized one, in the format of its
version of TensorRT-LLM, is written to ``engines/<recipe>/checkpoints/``, unless it exists already. ModelOpt
runs in a separate process (``build/quantization/modelopt_worker.py``). Its output is compared with the source
before it is moved into place.
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

from build.checkpoints.tokenizer_file import find_end_ids, read_tokenizer
from build.command_line import add_engines, add_runtime, print_line, recipe_parser, run_command
from build.fetch import fetch_checkpoints
from build.files import exclusive, write_manifest
from build.hugging_face.write import write_hugging_face
from build.networks.source import open_network
from build.preflight import check_settings
from build.quantization.calibration_text import read_calibration_text
from build.quantization.checks import check_finite, compare, finished_config
from build.quantization.export import compare_export, finish_export
from build.quantization.quantized_checkpoint import (
    MODELOPT_VERSION,
    QuantizedCheckpoint,
    file_stamps,
    plan_checkpoint,
)
from build.quantization.source import DECODER_TYPES, CheckpointSource, read_checkpoint_source
from build.recipe import Recipe, load_recipe
from build.tensorrt_llm.check import refuse
from build.tensorrt_llm.pair import read_pair
from build.tensorrt_llm.rules.networks import PRECISION_RULES, VOCABULARY_RULES
from build.tensorrt_llm.rules.placement import PLACEMENT_RULES
from build.tensorrt_llm.rules.rule import findings
from pipelines.atomic_file import put_in_place, scratch_beside
from pipelines.errors import CheckpointError
from pipelines.places import CODE, ENGINES

ROLES = ("draft", "target")
_WORKER = "build.quantization.modelopt_worker"
_PROGRESS = "progress: "
_JOB_SETTINGS = ("quantization", "kv_cache_dtype", "format", "tp_size", "pp_size", "pad_vocab_size_to")
_PACKAGES = ("nvidia-modelopt", "torch", "transformers", "numpy")
_Report = Callable[[str], None]


def quantize_recipe(recipe: Recipe, engines: Path = ENGINES, report: _Report = print) -> dict[str, Path]:
    """Quantize the checkpoints of a recipe, unless the results exist already.

    Args:
        recipe: The pair; its ``runtime`` decides the number of ranks.
        engines: Folder in which ``<recipe>/checkpoints/<role>-<fingerprint>/`` is created.
        report: Called with one line per stage.

    Returns:
        Role -> checkpoint that its engine is compiled from: the recipe's own if it needs no
        quantization.

    Raises:
        CheckpointError: A source or the text is invalid, or ModelOpt failed; no partial result is left.
        RecipeError: The recipe combines settings that exclude each other.
        IncompatiblePairError: Draft and target do not fit together; nothing has been quantized.
        EngineBuildError: The folder is not writable.
    """
    recipe = fetch_checkpoints(recipe, report)
    plans = {role: plan_checkpoint(recipe, role, engines) for role in ROLES if role in recipe.engines}
    if any(plan is not None and not plan.is_made for plan in plans.values()):
        _check_pair(recipe, engines)
    found: dict[str, Path] = {}
    for role, plan in plans.items():
        engine = recipe.engines[role]
        if plan is None:
            found[role] = engine.checkpoint_directory()
            report(f"{role}: {engine.checkpoint} is used unchanged")
            continue
        with exclusive(plan.directory.parent):
            if plan.is_made:
                report(f"{role}: {plan.directory.name} is up to date")
            else:
                report(f"{role}: quantizing {engine.checkpoint} to {engine.quantization}")
                _make(recipe, plan, report)
        found[role] = plan.directory
    return found


def _check_pair(recipe: Recipe, engines: Path) -> None:
    """Check that the two fit together, before hours are spent on each of them."""
    if recipe.runtime == "embedded":
        check_settings(recipe)
        return
    pair = read_pair(recipe, engines)
    found = findings(pair, (*VOCABULARY_RULES, *PRECISION_RULES, *PLACEMENT_RULES))
    if found:
        raise refuse(pair, found)


def _make(recipe: Recipe, plan: QuantizedCheckpoint, report: _Report) -> None:
    started_s = time.monotonic()
    try:
        with scratch_beside(plan.directory) as work:
            _make_in(work, recipe, plan, report)
    except OSError as error:
        raise CheckpointError(
            f"the {plan.role}'s quantized checkpoint could not be written: {type(error).__name__}: {error}",
            f"free disk space in {plan.directory.parent} and run the command again",
        ) from error
    report(f"{plan.role}: {plan.directory.name} finished after {time.monotonic() - started_s:.1f} s")


def _make_in(work: Path, recipe: Recipe, plan: QuantizedCheckpoint, report: _Report) -> None:
    """Quantize into a temporary folder and move the checkpoint into place."""
    stamps = file_stamps(plan.source)
    versions = _versions()
    check_finite(plan.source)
    tokenizer = read_tokenizer(plan.source.directory / "tokenizer.json")
    vocab_size = plan.source.config.get("vocab_size", tokenizer.num_ids)
    end_ids = find_end_ids(plan.source.directory, tokenizer, vocab_size)
    source = _as_hugging_face(plan.source, work / "source", end_ids)
    output = work / "checkpoint"
    output.mkdir()
    job: dict[str, Any] = {
        **{key: plan.settings[key] for key in _JOB_SETTINGS},
        "source": str(source.directory),
        "decoder_type": DECODER_TYPES[source.config["model_type"]],
        "output": str(output),
        "pieces": None,
    }
    about_text = None
    if plan.settings["calibration"] is not None:
        text = read_calibration_text(recipe.tensorrt_llm.calibration, source.directory / "tokenizer.json")
        job["pieces"] = str(work / "pieces.npy")
        np.save(job["pieces"], np.array(text.pieces, np.int32))
        about_text = {"name": text.name, "sha256": text.sha256, "num_tokens": text.num_tokens}
        report(f"{plan.role}: calibrating on {text.num_tokens:,} tokens of {text.name}")
    _run_worker(plan, job, work, report)
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
            f"{plan.source.directory} changed while it was quantized to {plan.directory.name}",
            "run the command again",
        )
    put_in_place(output, plan.directory)


def _versions() -> dict[str, str]:
    """Return the versions of the packages that quantize, after checking them."""
    try:
        versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
    except importlib.metadata.PackageNotFoundError as error:
        raise CheckpointError(
            f"quantizing needs packages that are not installed: {error}",
            "run 'make modelopt', or install requirements/build.txt and torch.txt",
        ) from None
    if versions["nvidia-modelopt"] != MODELOPT_VERSION:
        raise CheckpointError(
            f"ModelOpt {versions['nvidia-modelopt']} is installed, and only the output of {MODELOPT_VERSION} "
            "was checked",
            "install requirements/build.txt",
        )
    return versions


def _as_hugging_face(source: CheckpointSource, directory: Path, end_ids: Sequence[int]) -> CheckpointSource:
    """Return the source as a Hugging Face checkpoint, converted into ``directory`` if necessary."""
    if source.is_hugging_face:
        return source
    network = open_network(source.directory).read()
    write_hugging_face(directory, network, source.directory / "tokenizer.json", end_ids)
    return read_checkpoint_source(directory)


def _run_worker(plan: QuantizedCheckpoint, job: dict[str, Any], work: Path, report: _Report) -> None:
    """Run ModelOpt, report its progress, and write its output to a log next to the checkpoint."""
    job_path = work / "job.json"
    job_path.write_text(json.dumps(job), encoding="utf-8")
    log_path = plan.directory.parent / f"{plan.role}.log"
    last: deque[str] = deque(maxlen=1)
    command = [sys.executable, "-m", _WORKER, str(job_path)]
    with (
        log_path.open("w", encoding="utf-8") as log,
        subprocess.Popen(
            command,
            cwd=CODE,
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
            worker.kill()  # otherwise leaving the block waits until it ends, which can take hours
            raise
    if worker.returncode != 0:
        killed = worker.returncode < 0
        raise CheckpointError(
            f"ModelOpt could not quantize the {plan.role}: "
            + (f"killed by signal {-worker.returncode}" if killed else "; ".join(last)),
            "it was probably killed for memory: use a machine with more, or a smaller model"
            if killed
            else f"read {log_path}; the source may be damaged or the disk full",
        )


def _finish(
    plan: QuantizedCheckpoint,
    output: Path,
    source: CheckpointSource,
    end_ids: Sequence[int],
    report: _Report,
) -> dict[str, Any]:
    """Complete ``config.json``, add the tokenizer, and compare the weights with the source."""
    if plan.settings["format"] == "hugging_face":
        config = finish_export(output, source)
        measured = compare_export(output, source)
    else:
        config_path = output / "config.json"
        exported = json.loads(config_path.read_text(encoding="utf-8"))
        config = finished_config(exported, source, str(plan.settings["quantization"]), end_ids)
        config_path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        (output / "quant_cfg.json").unlink(missing_ok=True)  # for mixed precision; ModelOpt always writes it
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
            f"{config['vocab_size']}; pad the other role to the same size"
        )
    return config


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the last line of standard output is JSON: role -> checkpoint, and ``seconds``."""
    parser = recipe_parser("draftproof quantize", "Quantize the checkpoints of a recipe.")
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
