"""Summarize measurements: medians and spread, percentiles, ratios with intervals, goodput."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipelines.bench.arms import TARGET_ALONE, Arm
from pipelines.bench.measuring import Measurement
from pipelines.bench.plan import Cell
from pipelines.bench.report.acceptance import Acceptance, pooled
from pipelines.bench.report.blocks import Blocks, Interval
from pipelines.bench.reporting.slo import Slo
from pipelines.client import Generation
from pipelines.errors import VerificationError


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
        ratio_to_target: Ratio of ``Measurement.speed`` to that of the target alone.
        ttft_s: Times to first token; None if all answers are empty.
        itl_s: Times per output token; None if no answer has two tokens.
        e2e_latency_s: End-to-end latencies.
        goodput_per_s: Requests per second within the SLO of the repetitions.
        share_good: Share of requests within the SLO.
        acceptance: Counts over all requests.
    """

    arm: Arm
    generations: tuple[Generation, ...]
    output_tokens_per_s: Spread
    ratio_to_target: Interval
    ttft_s: Percentiles | None
    itl_s: Percentiles | None
    e2e_latency_s: Percentiles
    goodput_per_s: Spread
    share_good: float
    acceptance: Acceptance


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


def figures_of(measurements: Sequence[Measurement], arms: Sequence[Arm], slo: Slo) -> list[CellFigures]:
    """Summarize measurements, in the order in which cells were first measured.

    Args:
        measurements: Measurements, equally many of every arm in each cell.
        arms: Arms in the desired order, including the target alone.
        slo: Service-level objective of a good request.

    Raises:
        VerificationError: A measurement has no output.
    """
    cells: dict[Cell, dict[Arm, list[Measurement]]] = {}
    for measurement in measurements:
        if not measurement.num_output_tokens:
            raise VerificationError(
                "an arm cannot be compared",
                values=f"{measurement.arm}, {measurement.cell}: no output",
                limit="at least one output token in each measurement",
                remedy="use prompts that the target answers with at least one token",
            )
        by_arm = cells.setdefault(measurement.cell, {arm: [] for arm in arms})
        by_arm[measurement.arm].append(measurement)
    return [_cell_figures(cell, by_arm, slo) for cell, by_arm in cells.items()]


def _cell_figures(cell: Cell, by_arm: dict[Arm, list[Measurement]], slo: Slo) -> CellFigures:
    speeds = {arm: [measurement.speed for measurement in group] for arm, group in by_arm.items()}
    blocks = Blocks(speeds)
    arms = tuple(
        _arm_figures(arm, group, blocks.ratio(arm, TARGET_ALONE), slo) for arm, group in by_arm.items()
    )
    return CellFigures(cell, arms, blocks)


def _arm_figures(arm: Arm, group: Sequence[Measurement], ratio: Interval, slo: Slo) -> ArmFigures:
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
        goodput_per_s=spread([slo.num_good(each.generations) / each.wall_s for each in group]),
        share_good=slo.num_good(generations) / len(generations),
        acceptance=pooled(generations),
    )
