"""Bounds of a regression that hold at any time, and the number of trials that a verdict still needs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from pipelines.canary.judge.e_values import Side
from pipelines.canary.judge.measures import Measure

_EDGE = 1e-9  # relative distance from the ends of the range, which are not tested
_STEPS = 40
_MOST_GROWTH = 1e4


@dataclass(frozen=True)
class Bounds:
    """A confidence sequence at one time.

    Attributes:
        num: Number of trials so far.
        estimate: Observed regression; None without data.
        low: Lower bound, which holds at all times together with the given confidence.
        high: Upper bound, which holds at all times together with the given confidence.
    """

    num: int
    estimate: float | None
    low: float
    high: float


def bounds(measure: Measure, confidence: float) -> Bounds:
    """Compute the bounds of a regression; each holds at all times together with ``confidence``."""
    least, most = measure.regression_range
    if not measure.num:
        return Bounds(0, None, least, most)
    needed = -math.log1p(-confidence)
    low = _last(lambda regression: measure.log_evidence("above", regression) >= needed, least, most)
    high = _last(lambda regression: measure.log_evidence("below", regression) >= needed, most, least)
    return Bounds(measure.num, measure.estimate, low, high)


def trials_lacking(measure: Measure, side: Side, regression: float, needed: float) -> int | None:
    """Estimate how many more trials the evidence needs, if they continue as before.

    Args:
        measure: Measure with at least one trial.
        side: Side of ``regression`` on which the true one is to be shown.
        regression: Limit.
        needed: Natural logarithm of the evidence that is needed.

    Returns:
        0 if there is enough evidence; None if no reasonable number is enough, or the observed regression lies
        on the other side.
    """
    if measure.log_evidence(side, regression) >= needed:
        return 0

    def lacks(growth: float) -> bool:
        return measure.log_evidence(side, regression, growth) < needed

    if lacks(_MOST_GROWTH):
        return None
    enough = _MOST_GROWTH
    while enough > 2 and not lacks(enough / 2):
        enough /= 2
    return math.ceil(measure.num * (_last(lacks, enough / 2 if enough > 2 else 1.0, enough) - 1))


def _last(is_so: Callable[[float], bool], start: float, end: float) -> float:
    """Find by bisection where a property that holds near ``start`` ceases to hold; ``start`` if never."""
    edge = _EDGE * (end - start)
    inside, outside = start + edge, end - edge
    if not is_so(inside):
        return start
    if is_so(outside):
        return end
    for _ in range(_STEPS):
        middle = (inside + outside) / 2
        if is_so(middle):
            inside = middle
        else:
            outside = middle
    return inside
