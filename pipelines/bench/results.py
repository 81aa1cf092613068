"""Everything that one run of the bench found: what the reports are made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipelines.bench.batcher_overhead import BatcherOverhead
from pipelines.bench.decode_step import DecodeStep
from pipelines.bench.domain_shift import Phase
from pipelines.bench.figures import CellFigures
from pipelines.bench.plan import Plan
from pipelines.bench.slo import Slo
from pipelines.bench.verdicts import Crossover, Verdict, crossovers, verdicts


@dataclass(frozen=True)
class Results:
    """One run.

    Attributes:
        run_id: Names its files.
        plan: What was measured.
        slo: What a good request is.
        capacity_per_s: Prompt set -> requests per second of the target alone at the greatest closed load.
        cells: Figures, in the order of the plan.
        phases: Of the domain shift; empty if one of its two prompt sets was left out.
        step: None if the target's engine is not on this machine.
        overheads: The batcher's own cost.
        num_different: Answers that are not the target's own.
        conditions: From ``pipelines.conditions``.
    """

    run_id: str
    plan: Plan
    slo: Slo
    capacity_per_s: dict[str, float]
    cells: tuple[CellFigures, ...]
    phases: tuple[Phase, ...]
    step: DecodeStep | None
    overheads: tuple[BatcherOverhead, ...]
    num_different: int
    conditions: dict[str, Any]

    @property
    def verdicts(self) -> list[Verdict]:
        """Of every cell."""
        return verdicts(self.cells)

    @property
    def crossovers(self) -> list[Crossover]:
        """Of every prompt set and arm."""
        return crossovers(self.cells)
