"""Judge whether the adaptive draft length is ever slower, and up to which load each fixed one pays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from pipelines.bench.blocks import Interval, mean_ratio
from pipelines.bench.figures import CellFigures
from pipelines.bench.plan import ADAPTIVE, TARGET_ALONE, Arm, ClosedLoop, Plan
from pipelines.bench.reporting.slo import Slo

NEVER_BELOW = 0.97

Word = Literal["pass", "fail", "inconclusive"]


@dataclass(frozen=True)
class Verdict:
    """Verdict on the adaptive arm against another arm in one cell.

    Attributes:
        figures: Figures of the cell.
        other: Arm that the adaptive arm must not be slower than.
        ratio: Ratio of the speed of the adaptive arm to that of the other.
    """

    figures: CellFigures
    other: Arm
    ratio: Interval

    @property
    def word(self) -> Word:
        """``pass`` if the whole interval is at least 0.97, ``fail`` if all of it is below."""
        if self.ratio.low >= NEVER_BELOW:
            return "pass"
        return "fail" if self.ratio.high < NEVER_BELOW else "inconclusive"


def verdicts(cells: Sequence[CellFigures]) -> list[Verdict]:
    """Compare the adaptive arm with the target alone and the best fixed draft length in each cell.

    The best fixed length is chosen by the same figures, so luck favours it: the comparison is too strict
    rather than too lenient.
    """
    found = []
    for figures in cells:
        fixed = [each.arm for each in figures.arms if each.arm not in (TARGET_ALONE, ADAPTIVE)]
        for other in (TARGET_ALONE, figures.blocks.fastest(fixed)):
            found.append(Verdict(figures, other, figures.blocks.ratio(ADAPTIVE, other)))
    return found


def over_all_loads(cells: Sequence[CellFigures]) -> dict[str, Interval]:
    """Return prompt set -> ratio of the adaptive arm to the target alone, the mean over all loads."""
    by_set: dict[str, list[CellFigures]] = {}
    for figures in cells:
        by_set.setdefault(figures.cell.prompt_set.name, []).append(figures)
    return {
        name: mean_ratio([figures.blocks for figures in of_set], ADAPTIVE, TARGET_ALONE)
        for name, of_set in by_set.items()
    }


@dataclass(frozen=True)
class Crossover:
    """Load up to which an arm is faster than the target alone.

    Attributes:
        prompt_set: Name of the prompt set.
        arm: Arm.
        num_at_once: Number of concurrent requests at which the ratio to the target alone falls below 1, by
            interpolation in logarithms between measured loads; None if it does not.
        pays: Whether the ratio is above 1 at the least load.
    """

    prompt_set: str
    arm: Arm
    num_at_once: float | None
    pays: bool

    def __str__(self) -> str:
        if not self.pays:
            return "never pays"
        if self.num_at_once is None:
            return "pays throughout"
        return f"pays up to {self.num_at_once:.1f} concurrent"


def crossovers(cells: Sequence[CellFigures]) -> list[Crossover]:
    """Find the crossover of every arm except the target alone, for each prompt set with closed loads."""
    curves: dict[tuple[str, Arm], list[tuple[float, float]]] = {}
    for figures in cells:
        load = figures.cell.load
        if not isinstance(load, ClosedLoop):
            continue
        for each in figures.arms:
            if each.arm != TARGET_ALONE:
                point = (math.log(load.num_at_once), math.log(each.ratio_to_target.value))
                curves.setdefault((figures.cell.prompt_set.name, each.arm), []).append(point)
    return [_crossover(name, arm, points) for (name, arm), points in curves.items()]


def _crossover(prompt_set: str, arm: Arm, points: list[tuple[float, float]]) -> Crossover:
    pays = points[0][1] > 0
    for (left, above), (right, below) in pairwise(points):
        if pays and above > 0 >= below:
            crossing = left + (right - left) * above / (above - below)
            return Crossover(prompt_set, arm, math.exp(crossing), pays)
    return Crossover(prompt_set, arm, None, pays)


@dataclass(frozen=True)
class Results:
    """Results of one run.

    Attributes:
        run_id: Name of its files.
        plan: Plan of the run.
        slo: Service-level objective of a good request.
        capacity_per_s: Prompt set -> requests per second of the target alone at the greatest closed load.
        cells: Figures of the cells in the order of the plan.
        num_different: Number of answers that differ from the target's own.
        conditions: Conditions from ``pipelines.bench.reporting.conditions``.
        was_stopped: Whether the run was stopped before its plan was complete.
    """

    run_id: str
    plan: Plan
    slo: Slo
    capacity_per_s: dict[str, float]
    cells: tuple[CellFigures, ...]
    num_different: int
    conditions: dict[str, Any]
    was_stopped: bool = False
