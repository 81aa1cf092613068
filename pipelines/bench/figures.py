"""Summarize measurements: medians and spread, percentiles, ratios with intervals, acceptance."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipelines.bench.blocks import Blocks, Interval
from pipelines.bench.measuring import Measurement
from pipelines.bench.plan import TARGET_ALONE, Arm, Cell
from pipelines.client import Generation
from pipelines.errors import VerificationError

_LEAST_REPETITIONS = 2  # fewer say nothing about the noise


def acceptance_rate(generations: Sequence[Generation]) -> float | None:
    """Return accepted / drafted tokens of all answers; None if nothing was drafted."""
    drafted = sum(each.total_draft_tokens for each in generations)
    return sum(each.total_accepted_draft_tokens for each in generations) / drafted if drafted else None


def mean_acceptance_length(generations: Sequence[Generation]) -> float | None:
    """Return 1 + accepted / rounds of all answers; None if no round was counted, as of the target alone."""
    rounds = sum(each.num_rounds for each in generations)
    return 1 + sum(each.total_accepted_draft_tokens for each in generations) / rounds if rounds else None


@dataclass(frozen=True)
class Spread:
    """Median, least and greatest value of a few repetitions."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Percentiles:
    """Percentiles of the times of many requests, in seconds.

    With fewer than 100 requests ``p99`` is the slowest.
    """

    p50: float
    p99: float


@dataclass(frozen=True)
class ArmFigures:
    """One arm in one cell, over all repetitions.

    Attributes:
        arm: Arm.
        generations: All answers.
        output_tokens_per_s: Output tokens per second of the repetitions.
        ratio_to_target: Ratio of their geometric mean to that of the target alone.
        ttft_s: Times to first token; None if all answers are empty.
        itl_s: Times per output token; None if no answer has two tokens.
        e2e_latency_s: End-to-end latencies.
    """

    arm: Arm
    generations: tuple[Generation, ...]
    output_tokens_per_s: Spread
    ratio_to_target: Interval
    ttft_s: Percentiles | None
    itl_s: Percentiles | None
    e2e_latency_s: Percentiles


@dataclass(frozen=True)
class CellFigures:
    """All arms in one cell.

    Attributes:
        cell: Prompt set and load.
        arms: Figures of the arms in the order of the plan.
        blocks: Speeds of the arms, for ratios between any two.
    """

    cell: Cell
    arms: tuple[ArmFigures, ...]
    blocks: Blocks[Arm]

    def of(self, arm: Arm) -> ArmFigures:
        """Return the figures of one arm."""
        return next(figures for figures in self.arms if figures.arm == arm)


def spread(values: Sequence[float]) -> Spread:
    """Return median, least and greatest; quartiles of three repetitions would be meaningless."""
    return Spread(statistics.median(values), min(values), max(values))


def percentiles(values: Iterable[float | None]) -> Percentiles | None:
    """Compute nearest-rank percentiles of the values that are not None; None if there are none."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return None
    p50, p99 = (known[math.ceil(len(known) * share) - 1] for share in (0.50, 0.99))
    return Percentiles(p50, p99)


def figures_of(measurements: Sequence[Measurement], arms: Sequence[Arm]) -> list[CellFigures]:
    """Summarize measurements, in the order in which cells were first measured.

    Args:
        measurements: Measurements. Repetitions that lack an arm are left out, and so are cells with fewer
            than two others: they belong to a run that was stopped.
        arms: Arms in the desired order, including the target alone.

    Raises:
        VerificationError: A measurement has no output.
    """
    cells: dict[Cell, dict[Arm, list[Measurement]]] = {}
    for measurement in measurements:
        if not measurement.num_output_tokens:
            raise VerificationError(
                f"{measurement.arm} cannot be compared with {measurement.cell}: it has no output",
                "use prompts that the target answers with at least one token",
            )
        by_arm = cells.setdefault(measurement.cell, {arm: [] for arm in arms})
        by_arm[measurement.arm].append(measurement)
    found = []
    for cell, by_arm in cells.items():
        num_whole = min(map(len, by_arm.values()))
        if num_whole >= _LEAST_REPETITIONS:
            whole = {arm: group[:num_whole] for arm, group in by_arm.items()}
            found.append(_cell_figures(cell, whole))
    return found


def _cell_figures(cell: Cell, by_arm: dict[Arm, list[Measurement]]) -> CellFigures:
    speeds = {
        arm: [measurement.output_tokens_per_s for measurement in group] for arm, group in by_arm.items()
    }
    blocks = Blocks(speeds)
    arms = tuple(_arm_figures(arm, group, blocks.ratio(arm, TARGET_ALONE)) for arm, group in by_arm.items())
    return CellFigures(cell, arms, blocks)


def _arm_figures(arm: Arm, group: Sequence[Measurement], ratio: Interval) -> ArmFigures:
    generations = tuple(generation for measurement in group for generation in measurement.generations)
    latency = percentiles(generation.e2e_latency_s for generation in generations)
    assert latency is not None
    return ArmFigures(
        arm=arm,
        generations=generations,
        output_tokens_per_s=spread([measurement.output_tokens_per_s for measurement in group]),
        ratio_to_target=ratio,
        ttft_s=percentiles(generation.ttft_s for generation in generations),
        itl_s=percentiles(generation.itl_s for generation in generations),
        e2e_latency_s=latency,
    )
