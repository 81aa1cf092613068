"""Tests of the cost model: its interpolation, and how it follows the machine."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from pipelines.speculation.draft_length.goodput import Prospect, best_draft
from pipelines.speculation.draft_length.step_costs import Kind, StepCosts

ROWS, SECONDS = (2, 9, 16), (0.010, 0.012, 0.020)


def test_costs_are_interpolated_and_grow_on_beyond_the_last_measurement() -> None:
    costs = StepCosts(ROWS, SECONDS)
    assert costs.seconds([1, 2, 9, 16]).tolist() == pytest.approx([0.010, 0.010, 0.012, 0.020])
    assert float(costs.seconds(13)) == pytest.approx(0.012 + 4 / 7 * 0.008)
    assert float(costs.seconds(23)) == pytest.approx(0.028)


def test_noise_in_a_measurement_never_makes_more_rows_cheaper() -> None:
    costs = StepCosts((2, 9, 16), (0.010, 0.009, 0.020))
    assert (np.diff(costs.seconds(np.arange(2, 40))) >= 0).all()


def test_a_slower_machine_is_followed_at_every_size() -> None:
    costs = StepCosts(ROWS, SECONDS)
    for _ in range(300):
        costs.observe(9, 0, 0.024)
    assert float(costs.seconds(9)) == pytest.approx(0.024, rel=0.05)
    assert float(costs.seconds(16)) > 0.028  # not measured meanwhile, but slower too


def test_a_slow_time_at_one_size_never_makes_more_rows_look_cheaper() -> None:
    """Otherwise a step would keep rows that nobody needs, and never see that fewer are cheaper."""
    costs = StepCosts(ROWS, SECONDS)
    for size, slowness in ((8, 3.0), (9, 1.0)):
        for _ in range(300):
            costs.observe(size, 0, slowness * 0.012)
    assert (np.diff(costs.seconds(np.arange(2, 40))) > 0).all()
    assert float(costs.seconds(9)) == pytest.approx(0.012, rel=0.05)


def test_fixed_costs_of_steps_are_told_from_a_slower_machine() -> None:
    """Sending answers uses the same cores: with 16 requests it takes a third of a step, whatever the rows."""
    costs = StepCosts(ROWS, SECONDS)
    for _ in range(300):
        costs.observe(9, 0, 0.018)
    increase = float(np.diff(costs.seconds([9, 16]))[0]) / 0.008
    assert 1.0 < increase < 1.3  # of a step that takes 1.5 times as long


@pytest.mark.parametrize("is_estimate", [True, False])
@pytest.mark.parametrize("rise", [0.0, pytest.param(1.0, marks=pytest.mark.long), 4.0])
@pytest.mark.parametrize("slowness", [0.05, pytest.param(1.0, marks=pytest.mark.long), 20.0])
def test_costs_stay_positive_and_rise_however_long_another_machine_is_observed(
    slowness: float, rise: float, *, is_estimate: bool
) -> None:
    """On some machines no time depends on the rows: the worst case for two causes that share an error."""
    costs = StepCosts(ROWS, SECONDS, seconds_per_position=1e-6, is_estimate=is_estimate)
    rng = np.random.default_rng(0)
    sizes = rng.integers(2, 40, 4_000)
    seconds = slowness * 0.01 * (1 + rise * sizes / 16) * rng.lognormal(0, 0.5, len(sizes))
    for rows, took_s in zip(sizes.tolist(), seconds.tolist(), strict=True):
        costs.observe(rows, rows * 100, took_s)
        costs.observe_first(rows, rows * 100, took_s)
    learnt = costs.seconds(np.arange(2, 17), 100 * np.arange(2, 17))
    assert (np.diff(learnt) > 0).all()
    true = slowness * 0.01 * (1 + rise * np.arange(2, 17) / 16)
    assert (learnt > true / 4).all()
    assert (learnt < true * 4).all()


def test_one_outlier_changes_little() -> None:
    costs = StepCosts(ROWS, SECONDS)
    for _ in range(20):
        costs.observe(9, 0, 0.012)
    costs.observe(9, 0, 5.0)
    assert float(costs.seconds(9)) < 0.0125


def test_context_costs_each_row_that_reads_it() -> None:
    costs = StepCosts(ROWS, SECONDS, seconds_per_position=1e-6)
    assert float(costs.seconds(9, 9 * 1000)) == pytest.approx(0.012 + 0.009)
    for _ in range(300):
        costs.observe(9, 9 * 1000, 0.042)
    assert float(costs.seconds(9, 9 * 1000)) == pytest.approx(0.042, rel=0.05)


@pytest.mark.parametrize(("reread_share", "num_read"), [(1.0, 5), (0.25, 2), (0.0, 1)])
def test_rows_of_a_request_share_the_reading_of_its_context(reread_share: float, num_read: int) -> None:
    costs = StepCosts(ROWS, SECONDS, 1e-6, reread_share)
    assert costs.positions(5, 1000) == num_read * 1000
    assert costs.positions(10, 1000, num_requests=2) == 2 * num_read * 1000
    assert costs.positions(4, 1000, num_requests=4) == 4000, "requests share nothing"
    assert costs.row_context_s(1000) == pytest.approx(1e-3 * reread_share)


def test_long_contexts_are_drafted_for_where_rows_read_them_together() -> None:
    """Rows that each read the context alone cost as much as steps of their own."""
    survival = np.cumprod(np.full((1, 8, 8), 0.8), axis=2)
    prospect = Prospect(survival, np.array([0.8]), np.array([True]), mean_context=30_000)
    draft = StepCosts((2, 16), (0.001, 0.001))
    gains = []
    for reread_share in (0.1, 1.0):
        found = best_draft(prospect, draft, StepCosts(ROWS, SECONDS, 1e-6, reread_share))
        gains.append(found.tokens_per_s / found.without)
    assert gains[0] > 2 and gains[1] < 1.4


def test_the_first_draft_token_costs_what_its_row_does() -> None:
    """OpenVINO's products compute two rows where there is one; a second row of a mixture reads more."""
    prospect = Prospect(np.full((1, 8, 1), 0.4), np.array([0.4]), np.array([False]), mean_context=100)
    draft, gains = StepCosts((1, 16), (0.001, 0.001)), []
    for alone_s in (0.020, 0.012):
        found = best_draft(prospect, draft, StepCosts((1, 2, 9), (alone_s, 0.020, 0.080)))
        gains.append(found.tokens_per_s / found.without)
    assert gains == pytest.approx([1.4, 0.84])


def test_the_first_of_several_steps_has_a_price_of_its_own() -> None:
    costs = StepCosts(ROWS, SECONDS)
    for _ in range(300):
        costs.observe_first(9, 0, 0.015)
        costs.observe(9, 0, 0.012)
    assert costs.first_s == pytest.approx(0.003, rel=0.05)
    assert float(costs.seconds(9)) == pytest.approx(0.012)
    for _ in range(300):
        costs.observe_first(9, 0, 0.001)
    assert costs.first_s == 0.0


@pytest.mark.parametrize("is_estimate", [True, False])
def test_rows_that_looked_expensive_become_cheap_when_their_steps_are_seen(*, is_estimate: bool) -> None:
    costs = StepCosts((2, 9), (0.010, 0.040), is_estimate=is_estimate)
    for _ in range(100):
        costs.observe(2, 0, 0.010)
        costs.observe(9, 0, 0.013)
    assert float(np.diff(costs.seconds([2, 9]))[0]) == pytest.approx(0.003, abs=0.001)


def test_a_calibration_that_others_disturbed_is_trusted_less() -> None:
    rows, seconds = (2, 5, 9, 12, 16, 24), np.array([0.010, 0.011, 0.012, 0.016, 0.020, 0.030])
    errors: dict[bool, list[float]] = {True: [], False: []}
    for seed, is_estimate in itertools.product(range(20), errors):
        rng = np.random.default_rng(seed)
        disturbed = seconds * rng.lognormal(0, 0.25, len(rows))
        costs = StepCosts(rows, disturbed.tolist(), is_estimate=is_estimate)
        for _ in range(3):
            for seen in (0, 2, 4):
                costs.observe(rows[seen], 0, seconds[seen] * rng.lognormal(0, 0.05))
        ratios = costs.seconds([2, 9, 16]) / seconds[[0, 2, 4]]
        errors[is_estimate].append(float(np.abs(np.log(ratios / ratios[0])).mean()))
    assert np.mean(errors[True]) < 0.7 * np.mean(errors[False])


def test_one_size_may_turn_out_to_be_slow_and_later_the_whole_machine() -> None:
    costs = StepCosts(ROWS, SECONDS)
    for rows, seconds in ((9, 0.012), (16, 0.023)):
        for _ in range(200):
            costs.observe(rows, 0, seconds)
    assert float(costs.seconds(16)) == pytest.approx(0.023, rel=0.02)
    assert float(costs.seconds(9)) == pytest.approx(0.012, rel=0.03), "it was seen, and stays as it is"
    for rows, seconds in 200 * [(9, 0.012), (16, 0.023)] + 200 * [(16, 1.4 * 0.023)]:
        costs.observe(rows, 0, seconds)
    assert float(costs.seconds(16)) == pytest.approx(1.4 * 0.023, rel=0.02)
    assert float(costs.seconds(9)) == pytest.approx(1.4 * 0.012, rel=0.1), "nine rows are as much slower"


def test_the_ratio_of_two_sizes_is_certain_after_both_were_seen() -> None:
    costs = StepCosts(ROWS, SECONDS)
    for _ in range(200):
        costs.observe(16, 0, 0.020)
    before = costs.deviation(16, 9, 0)
    for _ in range(6):
        costs.observe(9, 0, 0.012)
    assert before > 0.05 and costs.deviation(16, 9, 0) < 0.6 * before


def observed(costs: StepCosts, num_requests: int, seconds: float, kind: Kind) -> None:
    for _ in range(200):
        costs.overhead.observe(num_requests, seconds, kind)


def test_what_verifying_costs_outside_of_the_engine_is_known_after_both_kinds_of_steps() -> None:
    costs = StepCosts(ROWS, SECONDS)
    observed(costs, 4, 0.008, "adapted")
    assert costs.overhead.extra_s(4) == 0.0, "nothing to compare it with"
    observed(costs, 3, 0.0015, "alone")
    extra_s = costs.overhead.extra_s(3)
    assert 0.8 < extra_s / (3 * 0.0015) <= 1
    assert costs.overhead.extra_s(16) == 0.0, "a part of the time belongs to the step, not to each request"
    costs.overhead.observe(3, 1.0, "alone")
    assert costs.overhead.extra_s(3) > 0.9 * extra_s, "a moment without CPU"


def test_speculation_has_to_pay_for_what_it_costs_outside_of_the_engine() -> None:
    costs, draft_costs = StepCosts(ROWS, SECONDS), StepCosts(ROWS, [0.0002] * 3)
    prospect = Prospect(np.full((4, 8, 4), 0.2), np.full(4, 0.2), np.ones(4, bool), 0.0)
    gain = gain_of(prospect, draft_costs, costs)
    observed(costs, 4, 0.001, "alone")
    observed(costs, 4, 0.002, "adapted")
    assert gain_of(prospect, draft_costs, costs) < 0.96 * gain


def gain_of(prospect: Prospect, draft_costs: StepCosts, target_costs: StepCosts) -> float:
    best = best_draft(prospect, draft_costs, target_costs)
    return best.tokens_per_s / best.without


def test_an_overhead_that_was_taken_too_high_does_not_keep_speculation_off() -> None:
    costs = StepCosts(ROWS, SECONDS)
    costs.overhead.observe(1, 0.5, "adapted")
    observed(costs, 1, 0.001, "alone")
    assert costs.overhead.extra_s(1) > 0.3
    for _ in range(20):
        observed(costs, 1, 0.001, "alone")
    assert costs.overhead.extra_s(1) < 0.01


def test_several_steps_teach_as_much_as_single_ones() -> None:
    one, many = StepCosts(ROWS, SECONDS), StepCosts(ROWS, SECONDS)
    for _ in range(10):
        for _ in range(5):
            one.observe(9, 0, 0.015)
        many.observe(9, 0, 0.015, num_steps=5)
    assert float(many.seconds(9)) == pytest.approx(float(one.seconds(9)), rel=0.02)
