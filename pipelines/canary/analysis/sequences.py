"""What evidence says: bounds of a loss at any time, and how much more would decide."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pipelines.canary.analysis.counts import Side
from pipelines.canary.analysis.measures import Measure

_EDGE = 1e-9  # limits of what a loss can be are not tested themselves
_STEPS = 40
_MOST_GROWTH = 1e4


@dataclass(frozen=True)
class Bounds:
    """A confidence sequence at one time.

    Attributes:
        num: Trials so far.
        estimate: The loss seen; None without data.
        low: The loss was at any time above what this was then, with the confidence asked for.
        high: It was below this, with that confidence again.
    """

    num: int
    estimate: float | None
    low: float
    high: float


def bounds(measure: Measure, confidence: float) -> Bounds:
    """Where the loss lies; each bound holds at all times together with ``confidence``."""
    least, most = measure.losses
    if not measure.num:
        return Bounds(0, None, least, most)
    needed = -math.log1p(-confidence)
    low = _last(lambda loss: measure.log_evidence("above", loss) >= needed, least, most)
    high = _last(lambda loss: measure.log_evidence("below", loss) >= needed, most, least)
    return Bounds(measure.num, measure.estimate, low, high)


def sequence(measure: Measure, nums: Iterable[int], confidence: float) -> list[Bounds]:
    """The bounds as they were after so many trials; what a plot shows."""
    return [bounds(measure.first(num), confidence) for num in nums if num <= measure.num]


def trials_lacking(measure: Measure, side: Side, loss: float, needed: float) -> int | None:
    """Trials more until the evidence reaches ``needed``, if they go on as those so far.

    Args:
        measure: With at least one trial.
        side: Of ``loss`` that is to be shown.
        loss: Limit.
        needed: Natural logarithm.

    Returns:
        0 if it has; None if so many would not do, or the loss seen lies on the other side.
    """
    if measure.log_evidence(side, loss) >= needed:
        return 0

    def lacks(growth: float) -> bool:
        return measure.log_evidence(side, loss, growth) < needed

    if lacks(_MOST_GROWTH):
        return None
    enough = _MOST_GROWTH
    while enough > 2 and not lacks(enough / 2):
        enough /= 2
    return math.ceil(measure.num * (_last(lacks, enough / 2 if enough > 2 else 1.0, enough) - 1))


def _last(is_so: Callable[[float], bool], start: float, end: float) -> float:
    """Where something that holds near ``start`` ceases to hold; ``start`` if it does not hold there."""
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
