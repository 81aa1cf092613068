"""ModelOpt's worker in this process: importing torch and ModelOpt takes most of a small checkpoint's time.

The code is the worker's own; one test runs it as the program that users run.
"""

from __future__ import annotations

import importlib
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from build.quantized_checkpoint import QuantizedCheckpoint


def worker() -> Any:
    """The module; skips where ModelOpt is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its libraries, on import
        pytest.importorskip("modelopt", reason="nvidia-modelopt is not installed (requirements/build.txt)")
        return importlib.import_module("build.quantization.modelopt_worker")


def run_in_process(
    plan: QuantizedCheckpoint, order: dict[str, Any], work: Path, report: Callable[[str], None]
) -> None:
    """In place of ``build.quantize._run_worker``."""
    module = worker()
    order_path = work / "order.json"
    order_path.write_text(json.dumps(order), encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert module.main([str(order_path)]) == 0
