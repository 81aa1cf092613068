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


@dataclass(frozen=True)
class Acceptance:
    """Counts over all rounds.

    Attributes:
        num_rounds: Number of target passes; 0 for the target alone, which does not count them.
        total_draft_tokens: Number of proposed draft tokens.
        total_accepted_draft_tokens: Number of accepted draft tokens.
    """

    num_rounds: int
    total_draft_tokens: int
    total_accepted_draft_tokens: int

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted / drafted; None if nothing was drafted."""
        return self.total_accepted_draft_tokens / self.total_draft_tokens if self.total_draft_tokens else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """1 + accepted / rounds; None if no round was counted."""
        return 1 + self.total_accepted_draft_tokens / self.num_rounds if self.num_rounds else None


def pooled(generations: Sequence[Generation]) -> Acceptance:
    """Add up the counts of answers."""
    return Acceptance(
        num_rounds=sum(each.num_rounds for each in generations),
        total_draft_tokens=sum(each.total_draft_tokens for each in generations),
        total_accepted_draft_tokens=sum(each.total_accepted_draft_tokens for each in generations),
    )


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
        acceptance: Counts over all requests.
    """

    arm: Arm
    generations: tuple[Generation, ...]
    output_tokens_per_s: Spread
    ratio_to_target: Interval
    ttft_s: Percentiles | None
    itl_s: Percentiles | None
    e2e_latency_s: Percentiles
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
        acceptance=pooled(generations),
    )
