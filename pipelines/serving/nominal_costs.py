"""Costs of steps that nobody measured: what a GPU needs to read an engine's weights once.

TensorRT-LLM's engines are not calibrated: no margins come back, and the batcher does not say what a step
took. The controller of the draft length needs ratios more than seconds, and those follow from the sizes of
the engine files. What a request really accepts is learnt while it runs.
"""

from __future__ import annotations

from pathlib import Path

from pipelines.speculation.step_costs import StepCosts
from pipelines.speculation.survival import NUM_CLASSES, AcceptanceByMargin

_BYTES_PER_S = 2.5e12  # about three quarters of an H100's 3.35e12; no step reaches the whole
_ROWS_FOR_FREE = 300  # rows that a step computes while it reads: arithmetic over bandwidth of an H100, BF16
_CALL_S = (
    0.0015  # a request through Triton and the executor; 0.9 to 1.4 ms on the stand-in, idle 2-core machine
)
_PRIOR_RATE = 0.7  # acceptance of a draft token before anything is known; pairs of one family: 0.6 to 0.8


def nominal_costs(engine_dir: Path, max_rows: int) -> StepCosts:
    """Costs of an engine's step, told from the size of one rank's file.

    Args:
        engine_dir: With ``rank0.engine``; 0 bytes are assumed where it is on another machine.
        max_rows: Rows of the largest step.
    """
    engine = engine_dir / "rank0.engine"
    reading_s = engine.stat().st_size / _BYTES_PER_S if engine.is_file() else 0.0
    rows = (1, max(2, max_rows))
    return StepCosts(rows, [_CALL_S + reading_s * (1 + count / _ROWS_FOR_FREE) for count in rows])


def nominal_draft_costs(engine_dir: Path, max_rows: int) -> StepCosts:
    """The same for a draft, whose steps of one proposal are one request."""
    whole = nominal_costs(engine_dir, max_rows)
    steps = StepCosts((1, max(2, max_rows)), (whole.seconds([1, max(2, max_rows)]) - _CALL_S).tolist())
    steps.first_s = _CALL_S
    return steps


def prior_acceptance() -> AcceptanceByMargin:
    """Acceptance where margins are not known: one rate for all classes."""
    return AcceptanceByMargin((_PRIOR_RATE,) * NUM_CLASSES, (1 / NUM_CLASSES,) * NUM_CLASSES)
