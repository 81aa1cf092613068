"""Results of one benchmark run, from which all reports are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipelines.bench.costs.batcher_overhead import BatcherOverhead
from pipelines.bench.costs.decode_step import DecodeStep
from pipelines.bench.costs.domain_shift import Phase
from pipelines.bench.plan import Plan
from pipelines.bench.report.blocks import Interval
from pipelines.bench.report.figures import CellFigures
from pipelines.bench.report.verdicts import Crossover, Verdict, crossovers, over_all_loads, verdicts
from pipelines.bench.reporting.slo import Slo


@dataclass(frozen=True)
class Results:
    """Results of one run.

    Attributes:
        run_id: Name of its files.
        plan: Plan of the run.
        slo: Service-level objective of a good request.
        capacity_per_s: Prompt set -> requests per second of the target alone at the greatest closed load.
        cells: Figures of the cells in the order of the plan.
        phases: Phases of the domain shift; empty if one of its two prompt sets was omitted.
        step: Decode step; None if the target's engine is not on this machine.
        overheads: Overhead of the batcher.
        num_different: Number of answers that differ from the target's own.
        conditions: Conditions from ``pipelines.bench.reporting.conditions``.
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
        """Verdicts of every cell."""
        return verdicts(self.cells)

    @property
    def over_all_loads(self) -> dict[str, Interval]:
        """Prompt set -> ratio of the adaptive arm to the target alone over all loads."""
        return over_all_loads(self.cells)

    @property
    def crossovers(self) -> list[Crossover]:
        """Crossovers of every prompt set and arm."""
        return crossovers(self.cells)
