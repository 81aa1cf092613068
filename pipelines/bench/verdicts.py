"""Whether the adaptive draft length ever costs, and up to where each fixed one pays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from pipelines.bench.arms import ADAPTIVE, TARGET_ALONE, Arm
from pipelines.bench.blocks import Interval
from pipelines.bench.figures import CellFigures
from pipelines.bench.loads import ClosedLoop

NEVER_BELOW = 0.97

Word = Literal["pass", "fail", "inconclusive"]


@dataclass(frozen=True)
class Verdict:
    """The adaptive arm against another, in one cell.

    Attributes:
        figures: The cell.
        other: The arm that it must not fall behind.
        ratio: Speed of the adaptive arm over the other's.
    """

    figures: CellFigures
    other: Arm
    ratio: Interval

    @property
    def word(self) -> Word:
        """``pass``: the whole interval is at least 0.97; ``fail``: all of it is below; else neither."""
        if self.ratio.low >= NEVER_BELOW:
            return "pass"
        return "fail" if self.ratio.high < NEVER_BELOW else "inconclusive"


def verdicts(cells: Sequence[CellFigures]) -> list[Verdict]:
    """In each cell the adaptive arm against the target alone and against the best fixed draft length.

    The best is chosen by the figures that it is then compared by, so luck makes it look better than it
    is: the comparison is too strict rather than too mild.
    """
    found = []
    for figures in cells:
        fixed = [each.arm for each in figures.arms if each.arm not in (TARGET_ALONE, ADAPTIVE)]
        for other in (TARGET_ALONE, figures.blocks.fastest(fixed)):
            found.append(Verdict(figures, other, figures.blocks.ratio(ADAPTIVE, other)))
    return found


@dataclass(frozen=True)
class Crossover:
    """Up to how many requests at once an arm is faster than the target alone.

    Attributes:
        prompt_set: Name of the prompts.
        arm: The arm.
        num_at_once: Where the ratio to the target alone falls through 1, on a straight line between
            measured loads, in logarithms of both; None if it does not.
        pays: Whether the ratio is above 1 at the least load.
    """

    prompt_set: str
    arm: Arm
    num_at_once: float | None
    pays: bool

    def __str__(self) -> str:
        if not self.pays:
            return "never pays"
        return "pays throughout" if self.num_at_once is None else f"pays up to {self.num_at_once:.1f} at once"


def crossovers(cells: Sequence[CellFigures]) -> list[Crossover]:
    """Of every arm but the target alone, for each prompt set with closed loads."""
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
