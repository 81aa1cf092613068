"""Runs ModelOpt's worker in this process, because importing torch and ModelOpt is slow.

The code is the worker's own; one test runs it as the separate program that users run.
"""

from __future__ import annotations

import importlib
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import build.quantize as quantize
from build.quantization.quantized_checkpoint import QuantizedCheckpoint, checkpoint_for
from tests.support.hugging_face_checkpoints import pair_recipe


def worker() -> Any:
    """Return the worker's module; skip where ModelOpt is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from its libraries, on import
        pytest.importorskip("modelopt", reason="nvidia-modelopt is not installed (requirements/build.txt)")
        return importlib.import_module("build.quantization.modelopt_worker")


def run_in_process(
    plan: QuantizedCheckpoint, order: dict[str, Any], work: Path, report: Callable[[str], None]
) -> None:
    """Replace ``build.quantize._run_worker``."""
    module = worker()
    order_path = work / "order.json"
    order_path.write_text(json.dumps(order), encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert module.main([str(order_path)]) == 0


def made(
    folder: Path, checkpoint: Path, quantization: str, run: Any = run_in_process, **engine: Any
) -> tuple[Path, list[str]]:
    """Quantize one checkpoint.

    Args:
        **engine: Keys of the section ``tensorrt_llm`` of an engine.

    Returns:
        The quantized checkpoint and the progress lines.
    """
    worker()
    section = {"checkpoint": str(checkpoint), "quantization": quantization, "tensorrt_llm": engine}
    recipe = pair_recipe(folder, section, section, runtime="tensorrt_llm")
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantize, "_run_worker", run)
        patch.setattr(quantize, "ROLES", ("target",))
        directory = quantize.quantize_recipe(recipe, folder / "engines", lines.append)["target"]
    assert directory == checkpoint_for(recipe, "target", folder / "engines")
    return directory, lines
