"""Adds up the CPU time of an engine's steps, which other programs hardly change."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.bench.calibration.step_times import time_step
from pipelines.executor.engine import StepEngine
from pipelines.executor.step import StepInputs


class TimedEngine:
    """An engine that notes how long its steps take.

    Attributes:
        config: That of the engine.
        busiest_s: CPU time of the thread that computed longest in each step, added over all steps.
        caller_s: CPU time of the calling thread within the steps.

    Args:
        engine: Computes the steps.
    """

    def __init__(self, engine: StepEngine) -> None:
        self.config = engine.config
        self.busiest_s = self.caller_s = 0.0
        self._engine = engine

    def step(self, inputs: StepInputs) -> npt.NDArray[np.float32]:
        """Compute a step; see ``Engine.step``."""
        found: list[npt.NDArray[np.float32]] = []
        started_s = time.thread_time()
        self.busiest_s += time_step(lambda: found.append(self._engine.step(inputs))).busiest_s
        self.caller_s += time.thread_time() - started_s
        return found[0]

    def copy_block(self, source: int, destination: int) -> Any:
        """Copy a block of the engine."""
        self._engine.copy_block(source, destination)
