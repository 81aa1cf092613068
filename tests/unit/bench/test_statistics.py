"""Tests of the bench's statistics, by simulation and by hand."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from pipelines.bench.blocks import Blocks, Interval
from pipelines.bench.figures import acceptance_rate, figures_of, mean_acceptance_length, percentiles, spread
from pipelines.bench.plan import ADAPTIVE, TARGET_ALONE, Cell
from pipelines.bench.report import comparisons
from pipelines.bench.reporting.section import joint_verdict
from pipelines.errors import VerificationError
from tests.unit.bench.answers import ARMS, CODE, K2, K4, answer, cells_with_ratios, measured


def _coverage(num_arms: int, num_repetitions: int, block_noise: float) -> float:
    """Return the share of 2,000 simulated benches whose 95 % interval contains the true ratio of two arms."""
    random = np.random.default_rng(7)
    true = {f"arm {index}": 1.0 + 0.2 * index for index in range(num_arms)}
    num_covered = 0
    for _ in range(2000):
        blocks = np.exp(random.normal(0, block_noise, num_repetitions))
        speeds = {
            arm: list(speed * blocks * np.exp(random.normal(0, 0.03, num_repetitions)))
            for arm, speed in true.items()
        }
        interval = Blocks(speeds).ratio("arm 1", "arm 0")
        num_covered += interval.low <= 1.2 <= interval.high
    return num_covered / 2000


@pytest.mark.parametrize(("num_arms", "num_repetitions"), [(2, 3), (5, 3), (4, 6)])
def test_intervals_of_ratios_cover_the_truth_as_often_as_said(num_arms: int, num_repetitions: int) -> None:
    # 2,000 trials at 0.95 have a standard error of 0.005. A drift ten times the noise must not matter.
    assert _coverage(num_arms, num_repetitions, 0.3) == pytest.approx(0.95, abs=0.018)


def test_an_interval_is_that_of_the_paired_t_test_where_there_are_two_arms() -> None:
    # Differences of logarithms 0.1, 0.2, 0.3: mean 0.2, standard error 0.1 / sqrt(3), t(2) = 4.303.
    speeds = {"a": [1.0, 2.0, 3.0], "b": [np.exp(0.1), 2 * np.exp(0.2), 3 * np.exp(0.3)]}
    interval = Blocks(speeds).ratio("b", "a")
    half_width = 4.302653 * 0.1 / np.sqrt(3)
    wanted = [np.exp(0.2), np.exp(0.2 - half_width), np.exp(0.2 + half_width)]
    assert [interval.value, interval.low, interval.high] == pytest.approx(wanted)
    assert Blocks(speeds).ratio("a", "a") == Interval(1.0, 1.0, 1.0)


def test_more_arms_make_intervals_narrower_at_equal_noise() -> None:
    random = np.random.default_rng(3)

    def width(num_arms: int) -> float:
        widths = []
        for _ in range(300):
            speeds = {str(arm): list(np.exp(random.normal(0, 0.02, 3))) for arm in range(num_arms)}
            interval = Blocks(speeds).ratio("1", "0")
            widths.append(interval.high - interval.low)
        return statistics.fmean(widths)

    assert width(5) < 0.65 * width(2)


def test_percentiles_are_values_that_occurred() -> None:
    found = percentiles([None, *map(float, range(1, 201))])
    assert found is not None
    assert (found.p50, found.p99) == (100.0, 198.0)
    few = percentiles([3.0, 1.0])
    assert few is not None
    assert (few.p50, few.p99) == (1.0, 3.0)
    assert percentiles([None]) is None


def test_figures_follow_their_formulas() -> None:
    cell = Cell(CODE, 1)
    drafted = answer(
        ttft=0.5,
        e2e=1.5,
        num_rounds=4,
        total_draft_tokens=8,
        total_accepted_draft_tokens=3,
    )
    walls = {0: 2.0, 1: 1.0, 2: 4.0}
    measurements = [
        measured(
            cell, arm, repetition, wall_s / (2 if arm == K2 else 1), *[drafted if arm == K2 else answer()] * 2
        )
        for repetition, wall_s in walls.items()
        for arm in ARMS
    ]
    (figures,) = figures_of(measurements, ARMS)
    assert figures.of(TARGET_ALONE).output_tokens_per_s == spread([5.0, 10.0, 2.5])
    # Ratios are taken within a repetition, so the machine's drift leaves no trace.
    ratio = figures.of(K2).ratio_to_target
    assert [ratio.value, ratio.low, ratio.high] == pytest.approx([2.0, 2.0, 2.0])
    assert figures.of(TARGET_ALONE).ratio_to_target == Interval(1.0, 1.0, 1.0)
    ttft, itl = figures.of(K2).ttft_s, figures.of(K2).itl_s
    assert ttft is not None and itl is not None
    assert (ttft.p50, itl.p50, figures.of(K2).e2e_latency_s.p99) == (0.5, 0.25, 1.5)
    generations = figures.of(K2).generations
    assert (acceptance_rate(generations), mean_acceptance_length(generations)) == (3 / 8, 1.75)
    assert acceptance_rate(figures.of(TARGET_ALONE).generations) is None


def test_a_run_that_was_stopped_is_compared_where_every_arm_was_measured_twice() -> None:
    whole, part = Cell(CODE, 1), Cell(CODE, 2)
    measurements = [measured(whole, arm, repetition, 1.0) for repetition in range(2) for arm in ARMS]
    measurements.append(measured(whole, K2, 2, 9.0))
    measurements += [measured(part, arm, 0, 1.0) for arm in ARMS]
    (figures,) = figures_of(measurements, ARMS)
    assert figures.cell == whole and figures.of(K2).output_tokens_per_s == spread([10.0] * 2)


def test_measurements_without_output_are_not_compared() -> None:
    with pytest.raises(VerificationError, match="cannot be compared"):
        figures_of([measured(Cell(CODE, 1), K2, 0, 1.0, answer(0))], ARMS)


@pytest.mark.parametrize(
    ("ratio", "noise", "verdict"),
    [(1.3, 0.0, "pass"), (0.97, 0.0, "pass"), (0.96, 0.0, "fail"), (1.0, 0.2, "inconclusive")],
)
def test_a_verdict_needs_the_whole_interval_on_one_side(ratio: float, noise: float, verdict: str) -> None:
    cells = cells_with_ratios({1: {K2: 0.5, K4: 0.5, ADAPTIVE: ratio + 1e-9}}, noise)
    to_target, _ = comparisons(cells)
    assert (to_target.other, to_target.verdict) == (TARGET_ALONE, verdict)
    assert joint_verdict([to_target]) == verdict


def test_the_best_fixed_draft_length_is_chosen_per_cell() -> None:
    cells = cells_with_ratios({1: {K2: 2.0, K4: 3.0, ADAPTIVE: 2.8}, 8: {K2: 0.9, K4: 0.6, ADAPTIVE: 1.0}})
    found = [(each.other, each.verdict) for each in comparisons(cells)]
    assert found == [(TARGET_ALONE, "pass"), (K4, "fail"), (TARGET_ALONE, "pass"), (K2, "pass")]
    assert joint_verdict(comparisons(cells)) == "fail", "one that fails decides"
