"""Tests of the statistics that a proof reports."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from pipelines.bench.reporting.rates import detection_probability, lower_bound, prompts_needed, upper_bound
from pipelines.validation.distribution import chi_square
from pipelines.validation.distribution.chi_square import compare_samples
from tests.statistical.goodness_of_fit import cells_for, fit, samples_needed


@pytest.mark.parametrize(
    ("dof", "total_variation", "thousands"),
    [
        *((15, 0.02, 64), (15, 0.01, 258), (15, 0.005, 1032)),
        *((63, 0.02, 94), (63, 0.01, 377), (63, 0.005, 1506)),
        *((255, 0.02, 153), (255, 0.01, 614), (255, 0.005, 2455)),
    ],
)
def test_sample_sizes_are_those_computed_independently(
    dof: int, total_variation: float, thousands: int
) -> None:
    num_samples = samples_needed(total_variation, dof, 1e-9, 0.99)
    assert round(num_samples / 1000) == thousands
    assert chi_square.power(num_samples, total_variation, dof, 1e-9) >= 0.99
    assert chi_square.power(num_samples - 2, total_variation, dof, 1e-9) < 0.99
    assert chi_square.detectable_total_variation(num_samples, dof, 1e-9, 0.99) == pytest.approx(
        total_variation, rel=1e-5
    )


@pytest.mark.parametrize("dof", [1, 3, 63, 400])
@pytest.mark.parametrize("alpha", [0.05, 1e-9, 1e-12])
def test_power_is_the_tail_of_the_noncentral_chi_square(dof: int, alpha: float) -> None:
    assert chi_square.critical_value(alpha, dof) == pytest.approx(stats.chi2.isf(alpha, dof))
    for total_variation in (0.001, 0.01, 0.1):
        expected = stats.ncx2.sf(stats.chi2.isf(alpha, dof), dof, 1e5 * 4 * total_variation**2)
        found = chi_square.power(1e5, total_variation, dof, alpha)
        assert found == pytest.approx(expected, abs=1e-9)
    assert chi_square.power(1e5, 0.0, dof, alpha) == alpha


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


def test_simulated_power_agrees_with_the_computed_one() -> None:
    """The test uses the worst alternative, alpha 1e-3 and three powers, each within 4 standard errors."""
    rng = np.random.default_rng(2)
    num_trials, num_samples, alpha = 4000, 5000, 1e-3
    law = np.array([0.2, 0.2, 0.1, 0.25, 0.15, 0.1])
    signs = np.where(np.arange(6) < 3, 2 * law, -2 * law)  # both halves have probability 0.5
    assert signs.sum() == pytest.approx(0)
    for target in (alpha, 0.5, 0.9, 0.99):
        total_variation = (
            chi_square.detectable_total_variation(num_samples, 5, alpha, target) if target > alpha else 0
        )
        counts = rng.multinomial(num_samples, law + total_variation * signs, num_trials)
        rejected = sum(fit(row, law).p_value <= alpha for row in counts)
        error = 4 * np.sqrt(num_trials * target * (1 - target))
        assert abs(rejected - num_trials * target) < error


def test_simulated_power_of_a_comparison_agrees_with_the_computed_one() -> None:
    rng = np.random.default_rng(3)
    num_trials, sizes, alpha = 2000, (6000, 3000), 1e-3
    law = np.array([0.3, 0.2, 0.3, 0.2])
    signs = np.array([1, 1, -1, -1]) * 2 * law
    worth = chi_square.samples_in_comparison(*sizes)
    assert worth == 2000
    total_variation = chi_square.detectable_total_variation(worth, 3, alpha, 0.9)
    rejected = 0
    for _ in range(num_trials):
        first = rng.multinomial(sizes[0], law)
        second = rng.multinomial(sizes[1], law + total_variation * signs)
        outcome = compare_samples(first, second)
        assert outcome.num_samples == worth
        rejected += outcome.p_value <= alpha
    assert abs(rejected / num_trials - 0.9) < 0.03


def test_the_statistics_are_pearsons() -> None:
    counts, law = np.array([18, 25, 57]), np.array([0.25, 0.25, 0.5])
    expected = stats.chisquare(counts, law * 100)
    found = fit(counts, law)
    assert (found.statistic, found.p_value) == pytest.approx((expected.statistic, expected.pvalue))
    assert (found.dof, found.num_samples, found.pooled_probability) == (2, 100, 0.0)
    other = np.array([60, 50, 90])
    table = stats.chi2_contingency(np.stack((counts, other)), correction=False)
    compared = compare_samples(counts, other)
    assert (compared.statistic, compared.p_value) == pytest.approx((table.statistic, table.pvalue))
    assert compared.dof == table.dof


def test_rare_cells_are_pooled_by_the_distribution_alone() -> None:
    law = np.array([0.9, 0.05, 0.03, 0.0125, 0.0075])
    outcomes = [fit(np.array(counts), law) for counts in ((180, 10, 6, 2, 2), (0, 0, 0, 100, 100))]
    # Expected: 180, 10, 6, 2.5, 1.5. The last two are too rare, also together, so 6 is pooled with them.
    assert [outcome.dof for outcome in outcomes] == [2, 2]
    assert outcomes[0].pooled_probability == outcomes[1].pooled_probability == pytest.approx(0.05)
    assert cells_for(law, 200) == (2, outcomes[0].pooled_probability)
    assert outcomes[0].p_value > 0.9 > 1e-99 > outcomes[1].p_value


def test_samples_are_pooled_by_what_they_have_together() -> None:
    first, second = np.array([100, 4, 0, 3, 0]), np.array([100, 0, 4, 3, 0])
    mirrored = compare_samples(second, first)
    found = compare_samples(first, second)
    assert found == mirrored
    assert found.dof == 1
    assert found.pooled_probability == pytest.approx(14 / 214)


def test_one_impossible_outcome_refutes_the_distribution() -> None:
    law = np.array([0.5, 0.5, 0.0])
    assert fit(np.array([500_000, 500_000, 1]), law).p_value == 0.0
    assert fit(np.array([500_000, 500_000, 0]), law).p_value == 1.0


def test_a_distribution_of_one_cell_cannot_be_tested() -> None:
    assert fit(np.array([7, 0]), np.array([1.0, 0.0])).p_value == 1.0
    assert fit(np.array([7, 1]), np.array([1.0, 0.0])).p_value == 0.0
    assert fit(np.array([2, 1]), np.array([0.5, 0.5])).dof == 0


def test_invalid_distributions_and_empty_samples_are_refused() -> None:
    with pytest.raises(ValueError, match=r"sums to 0\.9"):
        fit(np.array([1, 1]), np.array([0.5, 0.4]))
    with pytest.raises(ValueError, match="0 samples"):
        fit(np.array([0, 0]), np.array([0.5, 0.5]))
    with pytest.raises(ValueError, match="3 and 0 samples"):
        compare_samples(np.array([3]), np.array([0]))


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
    assert detection_probability(0.012, 249) >= 0.95 > detection_probability(0.012, 248)
    assert (
        detection_probability(0.0, 10),
        detection_probability(1.0, 10),
        detection_probability(1.0, 0),
    ) == (*(0.0, 1.0), 0.0)
