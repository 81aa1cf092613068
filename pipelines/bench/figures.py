"""From measurements to figures: medians, spread, and ratios taken within a repetition."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipelines.bench.load import TARGET_ALONE, Arm, Measurement
from pipelines.errors import VerificationError


@dataclass(frozen=True)
class Spread:
    """A median and what lies around it.

    Attributes:
        median: Middle value.
        low: Least value of a few repetitions; first quartile of many requests.
        high: Greatest value; third quartile.
    """

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class ArmFigures:
    """One arm at one load, over all repetitions.

    Attributes:
        arm: The way of asking.
        num_at_once: Requests at once.
        output_tokens_per_s: Of the repetitions: median, least, greatest.
        ratio_to_target: Tokens per second divided by those of the target alone in the same repetition.
        ttft_s: Of the requests: median and quartiles; None without streams.
        itl_s: The same.
        e2e_latency_s: The same.
        acceptance_rate: Pooled over all requests; None for the target alone.
        mean_acceptance_length: Pooled; None for the target alone.
        num_requests: Requests measured.
        num_output_tokens: Their output tokens.
    """

    arm: Arm
    num_at_once: int
    output_tokens_per_s: Spread
    ratio_to_target: Spread
    ttft_s: Spread | None
    itl_s: Spread | None
    e2e_latency_s: Spread
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    num_requests: int
    num_output_tokens: int


def spread_of_few(values: Sequence[float]) -> Spread:
    """Median, least and greatest: of three repetitions quartiles would say nothing."""
    return Spread(statistics.median(values), min(values), max(values))


def spread_of_many(values: Iterable[float | None]) -> Spread | None:
    """Median and quartiles of the values that are there; None if there is none."""
    present = [value for value in values if value is not None]
    if not present:
        return None
    if len(present) == 1:
        return Spread(present[0], present[0], present[0])
    low, median, high = statistics.quantiles(present, n=4, method="inclusive")
    return Spread(median, low, high)


def figures_of(measurements: Sequence[Measurement]) -> list[ArmFigures]:
    """Figures of every arm at every load, in the order of their first measurement.

    Raises:
        VerificationError: A measurement has no counterpart of the target alone, or no output.
    """
    groups: dict[tuple[int, str], list[Measurement]] = {}
    alone: dict[tuple[int, int], float] = {}
    for measurement in measurements:
        groups.setdefault((measurement.num_at_once, str(measurement.arm)), []).append(measurement)
        if measurement.arm == TARGET_ALONE:
            alone[measurement.num_at_once, measurement.repetition] = measurement.output_tokens_per_s
    return [_arm_figures(group, alone) for group in groups.values()]


def _arm_figures(group: Sequence[Measurement], alone: dict[tuple[int, int], float]) -> ArmFigures:
    generations = [generation for measurement in group for generation in measurement.generations]
    rates = [measurement.output_tokens_per_s for measurement in group]
    baselines = [alone.get((measurement.num_at_once, measurement.repetition), 0.0) for measurement in group]
    if not all(baselines):
        raise VerificationError(
            "an arm cannot be compared",
            values=f"{group[0].arm} at {group[0].num_at_once} requests at once",
            limit="each repetition needs output of the target alone",
            remedy="use prompts that the target answers with at least one token",
        )
    drafted = sum(generation.total_draft_tokens for generation in generations)
    accepted = sum(generation.total_accepted_draft_tokens for generation in generations)
    rounds = sum(generation.num_rounds for generation in generations)
    latency = spread_of_many(generation.e2e_latency_s for generation in generations)
    assert latency is not None
    return ArmFigures(
        arm=group[0].arm,
        num_at_once=group[0].num_at_once,
        output_tokens_per_s=spread_of_few(rates),
        ratio_to_target=spread_of_few(
            [rate / baseline for rate, baseline in zip(rates, baselines, strict=True)]
        ),
        ttft_s=spread_of_many(generation.ttft_s for generation in generations),
        itl_s=spread_of_many(generation.itl_s for generation in generations),
        e2e_latency_s=latency,
        acceptance_rate=accepted / drafted if drafted else None,
        mean_acceptance_length=1 + accepted / rounds if rounds else None,
        num_requests=len(generations),
        num_output_tokens=sum(generation.num_output_tokens for generation in generations),
    )


def best_draft_lengths(figures: Sequence[ArmFigures]) -> dict[int, ArmFigures]:
    """For each load the speculative arm with the highest median ratio to the target alone."""
    best: dict[int, ArmFigures] = {}
    for entry in figures:
        if entry.arm == TARGET_ALONE:
            continue
        held = best.get(entry.num_at_once)
        if held is None or entry.ratio_to_target.median > held.ratio_to_target.median:
            best[entry.num_at_once] = entry
    return best


def num_different_answers(measurements: Sequence[Measurement]) -> int:
    """Answers that are not those of the target alone to the same prompt at the same load.

    The bench is no proof, ``pipelines.validation`` is; but a speed-up of other answers means nothing.
    """
    expected = {
        measurement.num_at_once: [generation.output_ids for generation in measurement.generations]
        for measurement in measurements
        if measurement.arm == TARGET_ALONE
    }
    return sum(
        generation.output_ids != wanted
        for measurement in measurements
        for generation, wanted in zip(measurement.generations, expected[measurement.num_at_once], strict=True)
    )
