"""Tests of the statistics that a proof reports."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from pipelines.bench.reporting.rates import lower_bound, prompts_needed, upper_bound
from pipelines.validation.distribution.chi_square import (
    compare_samples,
    critical_value,
    noncentrality_needed,
    samples_in_comparison,
)
from tests.statistical.goodness_of_fit import detectable_total_variation


@pytest.mark.parametrize("alpha", [0.05, 1e-9])
@pytest.mark.parametrize(("dof", "total_variation"), [(1, 0.1), (15, 0.02), (63, 0.01), (255, 0.005)])
def test_what_is_detectable_is_detected_by_the_tail_of_the_noncentral_chi_square(
    dof: int, total_variation: float, alpha: float
) -> None:
    critical = stats.chi2.isf(alpha, dof)
    assert critical_value(alpha, dof) == pytest.approx(critical)
    num_samples = noncentrality_needed(dof, alpha, 0.99) / (2 * total_variation) ** 2
    assert detectable_total_variation(num_samples, dof, alpha, 0.99) == pytest.approx(total_variation)
    power = stats.ncx2.sf(critical, dof, num_samples * (2 * total_variation) ** 2)
    assert power == pytest.approx(0.99, abs=1e-6)


def test_no_deviation_of_a_given_size_is_harder_to_see_than_the_stated_one() -> None:
    rng = np.random.default_rng(1)
    smallest = np.inf
    for _ in range(2000):
        p, q = rng.dirichlet(np.full(6, 0.7)), rng.dirichlet(np.full(6, 0.7))
        total_variation = np.abs(p - q).sum() / 2
        smallest = min(smallest, np.sum((q - p) ** 2 / p) / (2 * total_variation) ** 2)
    assert 1.0 <= smallest < 1.2
    p = np.full(4, 0.25)
    q = p + np.array([0.05, 0.05, -0.05, -0.05])
    assert np.sum((q - p) ** 2 / p) == pytest.approx((2 * 0.1) ** 2)


def test_simulated_power_of_a_comparison_agrees_with_the_computed_one() -> None:
    rng = np.random.default_rng(3)
    num_trials, sizes, alpha = 2000, (6000, 3000), 1e-3
    law = np.array([0.3, 0.2, 0.3, 0.2])
    signs = np.array([1, 1, -1, -1]) * 2 * law
    worth = samples_in_comparison(*sizes)
    assert worth == 2000
    total_variation = detectable_total_variation(worth, 3, alpha, 0.9)
    rejected = 0
    for _ in range(num_trials):
        first = rng.multinomial(sizes[0], law)
        second = rng.multinomial(sizes[1], law + total_variation * signs)
        outcome = compare_samples(first, second)
        assert outcome.num_samples == worth
        rejected += outcome.p_value <= alpha
    assert abs(rejected / num_trials - 0.9) < 0.03


def test_the_statistic_is_pearsons() -> None:
    counts, other = np.array([18, 25, 57]), np.array([60, 50, 90])
    table = stats.chi2_contingency(np.stack((counts, other)), correction=False)
    compared = compare_samples(counts, other)
    assert (compared.statistic, compared.p_value) == pytest.approx((table.statistic, table.pvalue))
    assert (compared.dof, compared.pooled_probability) == (table.dof, 0.0)
    with pytest.raises(ValueError, match="3 and 0 samples"):
        compare_samples(np.array([3]), np.array([0]))


def test_samples_are_pooled_by_what_they_have_together() -> None:
    first, second = np.array([100, 4, 0, 3, 0]), np.array([100, 0, 4, 3, 0])
    mirrored = compare_samples(second, first)
    found = compare_samples(first, second)
    assert found == mirrored
    assert found.dof == 1
    assert found.pooled_probability == pytest.approx(14 / 214)


def test_bounds_of_a_rate_are_clopper_pearsons() -> None:
    for num_events, num_trials in ((0, 10), (3, 20), (10, 10), (1, 5000)):
        for bound, side in ((upper_bound, "less"), (lower_bound, "greater")):
            one_sided = stats.binomtest(num_events, num_trials, alternative=side).proportion_ci(0.95, "exact")
            expected = one_sided.high if side == "less" else one_sided.low
            assert bound(num_events, num_trials) == pytest.approx(expected)
    assert (lower_bound(0, 10), upper_bound(10, 10), upper_bound(0, 0)) == (0.0, 1.0, 1.0)


@pytest.mark.parametrize("num_prompts", [300, 3000])
def test_without_events_the_bound_is_the_rule_of_three(num_prompts: int) -> None:
    assert 0.98 * 3 / num_prompts < upper_bound(0, num_prompts) < 3 / num_prompts


def test_prompts_needed_to_see_a_rate_once() -> None:
    assert prompts_needed(0.012, 0.95) == 249
