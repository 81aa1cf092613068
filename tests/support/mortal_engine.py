"""An engine whose process ends in the step that computes certain tokens, as after a fault of a kernel.

Nothing in ``pipelines`` knows about it: a test adds ``install`` to the ``model.py`` that it rendered.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from pipelines.executor import executor
from pipelines.executor.engine import Engine
from pipelines.executor.step import StepInputs

POISON = (7, 7, 7, 7)
"""Tokens of a prompt that end the process before the first token of the answer."""

_STEP_S = 0.004  # so slow that other answers are under way


def make_mortal(run_directory: Path) -> None:
    """Let the engine of a rendered repository end at ``POISON``."""
    with (run_directory / "model_repository" / "speculative" / "1" / "model.py").open("a") as source:
        source.write("\n\nfrom tests.support.mortal_engine import install\n\ninstall()\n")


def install() -> None:
    """Replace the engines of this process."""

    class MortalEngine(Engine):
        def step(self, inputs: StepInputs) -> Any:
            if ",".join(map(str, POISON)) in ",".join(map(str, inputs.input_ids.tolist())):
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(_STEP_S)
            return super().step(inputs)

    executor.Engine = MortalEngine  # type: ignore[misc]
