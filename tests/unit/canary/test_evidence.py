"""Tests that the evidence that judges a canary has the error rates it claims.

A false alarm is evidence that reaches 1 / alpha at any time although the regression is within its limit. For
counts its probability is computed exactly. For bets it is simulated: NUM_RUNS sequences are judged after
every trial, and the upper bound of the rate (99.9 %, Clopper-Pearson) must lie below ALPHA. Up to 29 alarms
pass. A true rate of 0.05 passes with probability 1e-3, one of 0.2 never.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from pipelines.bench.reporting.rates import upper_bound
from pipelines.canary.judge import e_values
from pipelines.canary.judge.e_values import FloatArray, Side, adjusted
from pipelines.canary.judge.measures import (
    MeanDifference,
    MeanRatio,
    Measure,
    MedianRatio,
    QuantileRatio,
    Rate,
    bounds,
)
from tests.unit.canary.simulate import first

ALPHA = 0.05
NUM_RUNS = 1000
NUM_TRIALS = 600
NEEDED = math.log(1 / ALPHA)
SIDES: tuple[Side, Side] = ("above", "below")


def log_evidence_path(stakes: FloatArray, worst: float) -> FloatArray:
    """Compute ``e_values.mean_evidence`` after each value: float64 [n]."""
    gains = np.log1p(np.multiply.outer(e_values._FRACTIONS, stakes / worst)).cumsum(axis=1)
    path: FloatArray = np.logaddexp.reduce(gains, axis=0) - math.log(len(e_values._FRACTIONS))
    return path


def keeps_alpha(alarms: npt.ArrayLike) -> bool:
    """Return whether so few of the runs alarm that the rate is shown to be below ALPHA."""
    seen = np.asarray(alarms)
    return upper_bound(int(seen.sum()), len(seen), 0.999) <= ALPHA


def test_two_equal_rates_that_are_looked_at_all_the_time_seldom_alarm() -> None:
    """Two arms each fail 10 % of their requests."""
    ours, theirs = np.random.default_rng(1).random((2, NUM_RUNS, NUM_TRIALS)) < 0.1
    differences = ours.astype(np.float64) - theirs
    assert keeps_alpha([log_evidence_path(row, 1.0).max() >= NEEDED for row in differences])


def alarm_probability(alarms: npt.NDArray[np.bool_], rate: float) -> float:
    """Return the exact probability of any alarm.

    ``alarms``: [n, n + 1], whether this number of events after this number of trials, from 1, is an alarm.
    """
    quiet = np.zeros(alarms.shape[1])
    quiet[0] = 1.0
    for row in alarms:
        quiet[1:] = quiet[1:] * (1 - rate) + quiet[:-1] * rate
        quiet[0] *= 1 - rate
        quiet[row] = 0.0
    return float(1 - quiet.sum())


def of_all_counts(statistic: Callable[[FloatArray, FloatArray], FloatArray]) -> FloatArray:
    """Return a statistic per number of trials, from 1, and events; -inf for more events than trials."""
    trials, events = np.mgrid[1 : NUM_TRIALS + 1, 0 : NUM_TRIALS + 1].astype(np.float64)
    return np.where(events <= trials, statistic(np.minimum(events, trials), trials), -np.inf)


@pytest.mark.parametrize("rate", [0.003, 0.05, 0.5, 0.99])
@pytest.mark.parametrize("side", ["above", "below"])
def test_a_rate_at_its_limit_alarms_with_probability_alpha_at_most(side: Side, rate: float) -> None:
    evidence = of_all_counts(lambda events, trials: e_values.rate_evidence(side, events, trials, rate))
    found = alarm_probability(evidence >= NEEDED, rate)
    assert found <= ALPHA
    if rate == 0.5:  # but not because it never alarms
        assert found > ALPHA / 2


def test_a_ratio_of_means_at_its_limit_seldom_alarms() -> None:
    """Acceptance is 15 % lower than the baseline's, where 15 % is allowed; means drift alike in both arms."""
    rng = np.random.default_rng(3)
    drift = 1 - 0.3 * np.sin(np.arange(NUM_TRIALS) / 50) ** 2
    baseline = rng.beta(6, 2, (NUM_RUNS, NUM_TRIALS)) * drift
    candidate = 0.85 * rng.beta(6, 2, (NUM_RUNS, NUM_TRIALS)) * drift
    above = [log_evidence_path(row, 1.0).max() for row in 0.85 * baseline - candidate]
    below = [log_evidence_path(row, 0.85).max() for row in candidate - 0.85 * baseline]
    assert keeps_alpha(np.array(above) >= NEEDED)
    assert keeps_alpha(np.array(below) >= NEEDED)


def test_equal_times_seldom_alarm_by_their_tail_even_if_both_arms_become_slower() -> None:
    rng = np.random.default_rng(4)
    factor = np.where(np.arange(NUM_TRIALS) < NUM_TRIALS / 2, 1.0, 3.0)
    alarms = []
    for _ in range(NUM_RUNS // 2):
        tail = QuantileRatio(*(factor * rng.lognormal(0, 0.7, (2, NUM_TRIALS))), quantile=0.9)
        looks = (first(tail, num).log_evidence("above", 0.0) for num in range(60, NUM_TRIALS + 1, 60))
        alarms.append(max(looks) >= NEEDED)
    assert keeps_alpha(alarms)


@pytest.mark.parametrize("rate", [0.01, 0.4])
@pytest.mark.parametrize("side", ["above", "below"])
def test_evidence_from_counts_is_an_e_value_exactly(side: Side, rate: float) -> None:
    """Its mean over all outcomes is 1 at the limit, and below 1 at better rates."""
    num = 40
    events = np.arange(num + 1)
    evidence = np.exp(e_values.rate_evidence(side, events, num, rate))
    assert evidence @ stats.binom.pmf(events, num, rate) == pytest.approx(1.0, rel=1e-9)
    innocent = rate / 2 if side == "above" else (1 + rate) / 2
    assert evidence @ stats.binom.pmf(events, num, innocent) < 1.0


def test_evidence_from_bets_is_an_e_value_exactly() -> None:
    """The test enumerates all sequences of five stakes of -1, 0 or 2 with mean 0."""
    law = {-1.0: 0.5, 0.0: 0.25, 2.0: 0.25}
    mean = 0.0
    for outcome in itertools.product(law, repeat=5):
        probability = math.prod(law[stake] for stake in outcome)
        mean += probability * math.exp(e_values.mean_evidence(np.array(outcome), 1.0))
    assert mean == pytest.approx(1.0, rel=1e-12)


def measures() -> dict[str, Measure]:
    rng = np.random.default_rng(5)
    shares, times = rng.beta(4, 2, (2, 300)), rng.lognormal(0, 0.5, (2, 300))
    events = rng.random((2, 300)) < 0.1
    return {
        "rate": Rate(events[0], events[0]),
        "difference": MeanDifference(events[0].astype(float), events[1].astype(float)),
        "loss of goodput": MeanDifference(1.0 - events[0], 1.0 - events[1], sign=-1),
        "drop": MeanRatio(0.9 * shares[0], shares[1], sign=-1),
        "rise": MeanRatio(0.9 * shares[0], shares[1], sign=1),
        "median": MedianRatio(1.2 * times[0], times[1]),
        "tail": QuantileRatio(1.2 * times[0], times[1], 0.9),
    }


@pytest.mark.parametrize("name", measures())
def test_evidence_falls_towards_the_loss_and_bounds_are_where_it_ends(name: str) -> None:
    measure = measures()[name]
    least, most = measure.regression_range
    losses = np.linspace(least + 1e-6, most - 1e-6, 200)
    above, below = ([max(-1e6, measure.log_evidence(side, float(loss))) for loss in losses] for side in SIDES)
    assert np.all(np.diff(above) <= 1e-9)
    assert np.all(np.diff(below) >= -1e-9)
    found = bounds(measure, 1 - ALPHA)
    assert found.estimate is not None
    assert least <= found.low < found.estimate < found.high < most
    assert (
        measure.log_evidence("below", found.high + 1e-6)
        >= NEEDED
        > measure.log_evidence("below", found.high - 1e-3)
    )
    if found.low > least:
        assert measure.log_evidence("above", found.low - 1e-6) >= NEEDED
        assert measure.log_evidence("above", found.low + 1e-3) < NEEDED


HALF, NOTHING = np.full(30, 0.5), np.zeros(30)


@pytest.mark.parametrize(
    ("measure", "side", "loss", "stake_of_worst"),
    [
        (MeanDifference(NOTHING, NOTHING), "above", -0.1, 0.1 / 0.9),
        (MeanDifference(NOTHING, NOTHING), "below", 0.1, 0.1 / 0.9),
        (MeanRatio(HALF, HALF, sign=1), "above", -0.5, 0.25 / 0.5),
        (MeanRatio(HALF, HALF, sign=1), "below", 0.5, 0.25 / 1.0),
        (MeanRatio(HALF, HALF, sign=-1), "above", -0.5, 0.25 / 1.0),
        (MeanRatio(HALF, HALF, sign=-1), "below", 0.5, 0.25 / 0.5),
    ],
)
def test_bets_are_as_large_as_the_worst_loss_allows(
    measure: Measure, side: Side, loss: float, stake_of_worst: float
) -> None:
    expected = e_values.mean_evidence(np.full(30, stake_of_worst), 1.0)
    assert measure.log_evidence(side, loss) == pytest.approx(expected)


def test_bounds_hold_the_truth_at_all_times_together() -> None:
    rng = np.random.default_rng(6)
    missed = {"above": 0, "below": 0}
    for _ in range(200):
        drop = MeanRatio(0.8 * rng.beta(6, 2, 400), rng.beta(6, 2, 400), sign=-1)
        seen = [first(drop, num) for num in (25, 50, 100, 200, 400)]
        for side in SIDES:  # a bound of 90 % lies beyond the truth if its evidence reaches 10
            missed[side] += any(each.log_evidence(side, 0.2) >= math.log(10) for each in seen)
    # 200 runs that miss with 0.1 each would miss fewer than 11 times with probability 0.01.
    assert max(missed.values()) < 11


def test_two_quantiles_are_compared_at_every_place_where_they_might_be_equal() -> None:
    """The samples have many equal values; the reference compares all places one by one."""
    rng = np.random.default_rng(10)

    def against(place: float, low: FloatArray, high: FloatArray) -> float:
        higher = math.exp(e_values.rate_evidence("below", (high <= place).sum(), len(high), 0.7))
        lower = math.exp(e_values.rate_evidence("above", (low < place).sum(), len(low), 0.7))
        return (higher + lower + higher * lower) / 3

    for _ in range(20):
        candidate, baseline = rng.integers(1, 9, (2, 25)).astype(np.float64)
        loss = float(rng.choice([0.0, 0.5, -0.5]))
        places = [-math.inf, *np.arange(-1, 20, 0.25), math.inf]
        for side, low, high in (
            ("above", (1 + loss) * baseline, candidate),
            ("below", candidate, (1 + loss) * baseline),
        ):
            expected = min(against(place, low, high) for place in places)
            found = QuantileRatio(candidate, baseline, 0.7).log_evidence(side, loss)  # type: ignore[arg-type]
            assert math.exp(found) == pytest.approx(expected, rel=1e-9)


def test_evidence_does_not_depend_on_the_order() -> None:
    stakes = np.random.default_rng(8).uniform(-1, 1.2, 100)
    forwards, backwards = (log_evidence_path(each, 1.0)[-1] for each in (stakes, stakes[::-1]))
    assert forwards == pytest.approx(backwards)
    assert forwards == pytest.approx(e_values.mean_evidence(stakes, 1.0))


def test_failed_requests_count_as_infinitely_slow() -> None:
    never = np.full(60, math.inf)
    times = np.linspace(1, 2, 60)
    for slow, fast in ((never, times), (times, never)):
        median, tail = MedianRatio(slow, fast), QuantileRatio(slow, fast, 0.5)
        side: Side = "above" if slow is never else "below"
        assert median.log_evidence(side, 0.5) > 10
        assert tail.log_evidence(side, 0.5) > 10
    assert MedianRatio(never, never).estimate is None
    assert MedianRatio(never, never).log_evidence("above", 0.1) < 0


def brute_force(evidence: FloatArray) -> list[float]:
    """Return, for each hypothesis, the least mean over all groups that it belongs to."""
    numbers = range(len(evidence))
    groups = [group for size in numbers for group in itertools.combinations(numbers, size + 1)]
    return [min(evidence[list(group)].mean() for group in groups if each in group) for each in numbers]


def test_adjusted_evidence_is_that_of_closed_testing_and_beats_bonferroni() -> None:
    rng = np.random.default_rng(9)
    for _ in range(20):
        evidence = np.exp(rng.normal(0, 3, 6))
        found = np.exp(adjusted(list(np.log(evidence))))
        assert found == pytest.approx(brute_force(evidence))
        assert np.all(found >= evidence / 6 - 1e-12)
    assert adjusted([math.log(500), -math.inf, 0.0])[0] == pytest.approx(math.log(501 / 3))
    assert len(adjusted([])) == 0
