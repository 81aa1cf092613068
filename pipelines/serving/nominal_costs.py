"""Costs of steps that nobody measured before: what reading the weights takes, then what calls take.

TensorRT-LLM's engines are not calibrated: no margins come back, and the batcher does not say what a step
took. The controller of the draft length needs ratios more than seconds, and those follow from the sizes of
the engine files. While serving, the time of each call corrects them; what a request accepts is learnt too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipelines.speculation.step_costs import StepCosts
from pipelines.speculation.survival import NUM_CLASSES, AcceptanceByMargin

CALL_S = 0.0015
"""What a request costs besides its steps: median 1.4 ms on the stand-in of the tests, its Python included."""

_BYTES_PER_S = 2.5e12  # about three quarters of an H100's 3.35e12; no step reaches the whole
_ROWS_FOR_FREE = 300  # rows that a step computes while it reads: arithmetic over bandwidth of an H100, BF16
_LEAST_STEP_S = 0.0002  # what starting the kernels takes, however small the engine
_PRIOR_RATE = 0.7  # acceptance of a draft token before anything is known; pairs of one family: 0.6 to 0.8


def nominal_costs(engine_dir: Path, max_rows: int) -> StepCosts:
    """Costs of an engine's step, told from the size of one rank's file.

    Args:
        engine_dir: With ``rank0.engine``; where it is on another machine the least step is assumed.
        max_rows: Rows of the largest step.
    """
    engine = engine_dir / "rank0.engine"
    reading_s = (engine.stat().st_size if engine.is_file() else 0) / _BYTES_PER_S
    rows = (1, max(2, max_rows))
    return StepCosts(rows, [_LEAST_STEP_S + reading_s * (1 + count / _ROWS_FOR_FREE) for count in rows])


def prior_acceptance() -> AcceptanceByMargin:
    """Acceptance where margins are not known: one rate for all classes."""
    return AcceptanceByMargin((_PRIOR_RATE,) * NUM_CLASSES, (1 / NUM_CLASSES,) * NUM_CLASSES)


class CallCosts:
    """Corrects the costs of an engine by the times of calls to it.

    Calls that are open together are taken to share their steps.

    Args:
        costs: Of the engine.
        clock: Seconds, never going back.
    """

    def __init__(self, costs: StepCosts, clock: Callable[[], float] = time.monotonic) -> None:
        self._costs = costs
        self._clock = clock
        self._num_rows = 0

    @contextmanager
    def timed(self, num_rows: int, num_steps: int, *, reads_prompt: bool) -> Iterator[None]:
        """Time the call that is made inside the block; one that fails teaches nothing.

        Args:
            num_rows: That it has in each step.
            num_steps: Of the engine.
            reads_prompt: Whether a prompt may have to be computed first, whose time says nothing of steps.
        """
        self._num_rows += num_rows
        began_s, rows_at_once = self._clock(), self._num_rows
        try:
            yield
        finally:
            self._num_rows -= num_rows
        if not reads_prompt:
            step_s = (self._clock() - began_s - CALL_S) / num_steps
            self._costs.observe(rows_at_once, 0, max(step_s, _LEAST_STEP_S))
