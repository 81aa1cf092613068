"""An engine whose process ends in the step that computes certain tokens, as after a fault of a kernel.

Nothing in ``pipelines`` knows about it: a test adds ``install`` to the ``model.py`` that it rendered.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from pipelines.executor import loading
from pipelines.executor.engine import Engine
from pipelines.executor.step import StepInputs

POISON = (7, 7, 7, 7)
"""Tokens of a prompt that end the process before the first token of the answer."""

_STEP_S = 0.004  # so slow that other answers are under way
_LATE_S = 0.5


def make_mortal(run_directory: Path) -> Path:
    """Let the engine of a rendered repository end at ``POISON``.

    Returns:
        A file that a test may make: while it exists, Triton hears half a second late that the model, whose
        socket is open, has loaded.
    """
    late = run_directory / "late"
    with (run_directory / "model_repository" / "speculative" / "1" / "model.py").open("a") as source:
        source.write("\n\nfrom tests.support.mortal_engine import install, loading_late\n\ninstall()\n")
        source.write(f"TritonPythonModel = loading_late(TritonPythonModel, {str(late)!r})\n")
    return late


def install() -> None:
    """Replace the engines of this process."""

    class MortalEngine(Engine):
        def step(self, inputs: StepInputs) -> Any:
            if ",".join(map(str, POISON)) in ",".join(map(str, inputs.input_ids.tolist())):
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(_STEP_S)
            return super().step(inputs)

    loading.Engine = MortalEngine  # type: ignore[misc]


def loading_late(model: type[Any], file: str) -> type[Any]:
    """Return the class of a model that waits at the end of loading while a file exists."""

    class TritonPythonModel(model):  # type: ignore[misc]
        def initialize(self, args: dict[str, str]) -> None:
            super().initialize(args)
            time.sleep(_LATE_S if Path(file).exists() else 0)

    return TritonPythonModel
