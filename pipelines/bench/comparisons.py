"""Judge whether the adaptive draft length is ever slower than the target alone and fixed lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.bench.blocks import Interval
from pipelines.bench.figures import CellFigures
from pipelines.bench.plan import ADAPTIVE, TARGET_ALONE, Arm, Plan
from pipelines.bench.reporting.section import Verdict

NEVER_BELOW = 0.97


@dataclass(frozen=True)
class Comparison:
    """The adaptive arm beside another arm in one cell.

    Attributes:
        figures: Figures of the cell.
        other: Arm that the adaptive arm must not be slower than.
        ratio: Ratio of the speed of the adaptive arm to that of the other.
    """

    figures: CellFigures
    other: Arm
    ratio: Interval

    @property
    def verdict(self) -> Verdict:
        """``pass`` if the whole interval is at least 0.97, ``fail`` if all of it is below."""
        if self.ratio.low >= NEVER_BELOW:
            return "pass"
        return "fail" if self.ratio.high < NEVER_BELOW else "inconclusive"


def comparisons(cells: Sequence[CellFigures]) -> list[Comparison]:
    """Compare the adaptive arm with the target alone and the best fixed draft length in each cell.

    The best fixed length is chosen by the same figures, so luck favours it: the comparison is too strict
    rather than too lenient.
    """
    found = []
    for figures in cells:
        fixed = [each.arm for each in figures.arms if each.arm not in (TARGET_ALONE, ADAPTIVE)]
        for other in (TARGET_ALONE, figures.blocks.fastest(fixed)):
            found.append(Comparison(figures, other, figures.blocks.ratio(ADAPTIVE, other)))
    return found


@dataclass(frozen=True)
class Results:
    """Results of one run.

    Attributes:
        run_id: Name of its files.
        plan: Plan of the run.
        cells: Figures of the cells in the order of the plan.
        num_different: Number of answers that differ from the target's own.
        conditions: Conditions from ``pipelines.bench.reporting.conditions``.
        was_stopped: Whether the run was stopped before its plan was complete.
    """

    run_id: str
    plan: Plan
    cells: tuple[CellFigures, ...]
    num_different: int
    conditions: dict[str, Any]
    was_stopped: bool = False
