"""Sends the same requests in two ways, in turn, and compares the times of single ones.

In turn, so that a machine that slows down slows down both ways.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scipy.stats import quantile_test

from pipelines.bench.blocks import CONFIDENCE, Interval
from pipelines.bench.measuring import Measurement
from pipelines.bench.plan import Arm, Cell, ClosedLoop
from pipelines.bench.prompt_sets import PromptSet
from pipelines.client import Generation

MAX_TOKENS = 40

Ways = tuple[Arm, Arm]
"""The way without and the way with what is measured."""

Run = Callable[[Cell, Arm, int], Measurement]
"""Sends the requests of a cell to an arm; the number is that of the repetition."""

Measurements = dict[Arm, list[Measurement]]
"""Measurements of both ways; entries with the same index are of the same requests."""


@dataclass(frozen=True)
class Added:
    """A latency of single requests, directly and through a further process.

    Attributes:
        direct_ms: Median of direct requests, such as those to ``generate``.
        routed_ms: Median of the others, such as those to ``router``.
        added_ms: Median of the differences, routed - direct. Its interval is based on order statistics, so it
            is valid for any distribution.
        num_pairs: Number of differences: requests in both ways that have this latency.
    """

    direct_ms: float
    routed_ms: float
    added_ms: Interval
    num_pairs: int


def in_turn(cells: Sequence[Cell], ways: Ways, repetitions: int, run: Run) -> Measurements:
    """Run each cell in both ways; each way comes first as often as the other."""
    measured: Measurements = {way: [] for way in ways}
    for repetition in range(repetitions):
        for number, cell in enumerate(cells):
            for way in ways if (repetition + number) % 2 else ways[::-1]:
                measured[way].append(run(cell, way, repetition))
    return measured


def singles_in_turn(prompt_set: PromptSet, ways: Ways, repetitions: int, run: Run) -> Measurements:
    """Send the requests of a prompt set one at a time, after a repetition that warms up."""
    cells = [
        Cell(PromptSet(f"{prompt_set.name} {number}", (request,)), ClosedLoop(1))
        for number, request in enumerate(prompt_set.requests)
    ]
    in_turn(cells, ways, 1, run)
    return in_turn(cells, ways, repetitions, run)


def added_latency(measured: Measurements, ways: Ways, time_s: Callable[[Generation], float | None]) -> Added:
    """Compare a latency of the same single requests in two ways.

    Args:
        measured: Measurements of both ways, each of one request.
        ways: The two ways.
        time_s: Returns the latency of an answer; None if it has none.
    """
    without, with_it = ways
    pairs_ms = [
        (1e3 * direct, 1e3 * routed)
        for one, other in zip(measured[without], measured[with_it], strict=True)
        if (direct := time_s(one.generations[0])) is not None
        and (routed := time_s(other.generations[0])) is not None
    ]
    differences = [routed - direct for direct, routed in pairs_ms]
    interval = quantile_test(differences, p=0.5).confidence_interval(CONFIDENCE)
    direct_ms, routed_ms, added_ms = map(statistics.median, (*zip(*pairs_ms, strict=True), differences))
    return Added(direct_ms, routed_ms, Interval(added_ms, interval.low, interval.high), len(pairs_ms))
