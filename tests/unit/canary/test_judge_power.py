"""Tests of the judge's verdicts on simulated good and bad candidates.

Rollouts are drawn from recorded requests (``recorded_traffic``). 200 runs with the default limits gave no
false alarm and found every fault of the drills each time. These tests use fewer, to be fast.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import special, stats

from pipelines.bench.reporting.rates import upper_bound
from pipelines.bench.reporting.slo import Slo
from pipelines.canary.judge import measures, verdict
from pipelines.canary.judge.e_values import FloatArray, Side
from pipelines.canary.judge.limits import Limit, Limits
from pipelines.canary.judge.pairing import Pair, matched_rounds
from tests.unit.canary.faults import DRILLS, NO_FAULT, Fault, failing, less_accepted, slower
from tests.unit.canary.requests import LIMITS, limits, recorded_traffic, request
from tests.unit.canary.simulate import Run, simulate

RECORDED = recorded_traffic()
SLO_OF_DEMO = Slo(ttft_s=0.2, itl_s=0.01)

NO_MARGIN = Limit(pass_below=0.0, rollback_above=0.0)


def without_margins(alpha: float) -> Limits:
    """Limits without margins: any regression fails, so equal candidates are just at the limit."""
    named = ("errors", "timeouts", "goodput", "acceptance_rate", "acceptance_length", "survival")
    return limits(
        alpha=alpha,
        confidence=1 - 1e-12,
        **dict.fromkeys((*named, "ttft", "itl", "e2e_tail"), NO_MARGIN),
    )


def run(fault: Fault, limits: Limits = LIMITS, num_runs: int = 5, max_pairs: int = 2000) -> list[Run]:
    return simulate(RECORDED, fault, limits, SLO_OF_DEMO, num_runs, max_pairs)


def share(runs: list[Run], verdict: str) -> float:
    return sum(each.verdict == verdict for each in runs) / len(runs)


SOME_RUNS = [5, pytest.param(12, marks=pytest.mark.long)]


@pytest.mark.parametrize("num_runs", SOME_RUNS)
@pytest.mark.parametrize(("fault", "at_most"), list(zip(DRILLS, (600, 900, 500, 2000), strict=True)))
def test_every_fault_of_the_drills_is_rolled_back(fault: Fault, at_most: int, num_runs: int) -> None:
    found = run(fault, num_runs=num_runs)
    assert share(found, "fail") == 1.0
    assert max(each.num_pairs for each in found) <= at_most


@pytest.mark.parametrize("num_runs", SOME_RUNS)
def test_a_good_candidate_is_not_rolled_back_and_mostly_promoted_in_time(num_runs: int) -> None:
    found = run(NO_FAULT, num_runs=num_runs, max_pairs=4000)
    assert share(found, "fail") == 0.0
    assert share(found, "pass") >= 0.8


ALPHA = 0.2
NUM_RUNS = 100
MOST_PAIRS = 300


def alarms_without_difference(min_requests: int) -> int:
    """Count the alarms among rollouts without a difference, judged repeatedly from a number of pairs on."""
    judged_by = replace(without_margins(ALPHA), min_requests=min_requests)
    found = run(NO_FAULT, judged_by, NUM_RUNS, MOST_PAIRS)
    return sum(each.verdict == "fail" for each in found)


@pytest.mark.long
def test_no_difference_looked_at_all_the_time_alarms_with_probability_below_alpha() -> None:
    """The 99 % upper bound of the false alarm rate is below alpha, over 11 metrics and 20 looks.

    A true rate of alpha would pass with probability 0.01, one of 0.35 with less than 1e-6.
    """
    assert upper_bound(alarms_without_difference(50), NUM_RUNS, 0.99) < ALPHA
    most = max(alarms for alarms in range(NUM_RUNS) if upper_bound(alarms, NUM_RUNS, 0.99) < ALPHA)
    assert stats.binom.cdf(most, NUM_RUNS, 0.35) < 1e-6


@pytest.mark.long
def test_tests_for_one_look_that_are_looked_at_all_the_time_fail_the_same_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Normal and binomial tests with Bonferroni's correction are right once and wrong when repeated.

    Long, as it tests only that the test above can fail.
    """

    def by_normal(stakes: FloatArray, worst: float, growth: float = 1.0) -> float:
        error = float(stakes.std()) / math.sqrt(max(1, len(stakes)))
        return float(-stats.norm.logsf(stakes.mean() / error)) if error else 0.0

    def by_binomial(side: Side, events: FloatArray, trials: FloatArray, rate: float) -> FloatArray:
        if side == "below":
            events, rate = trials - events, 1 - rate
        p_value = special.betainc(np.maximum(events, 1e-9), trials - events + 1, rate)
        return np.asarray(-np.log(np.maximum(p_value, 1e-300)))

    monkeypatch.setattr(measures, "mean_evidence", by_normal)
    monkeypatch.setattr(measures, "rate_evidence", by_binomial)
    monkeypatch.setattr(verdict, "adjusted", lambda evidence: np.asarray(evidence) - math.log(len(evidence)))
    assert upper_bound(alarms_without_difference(MOST_PAIRS), NUM_RUNS, 0.99) < ALPHA
    assert upper_bound(alarms_without_difference(50), NUM_RUNS, 0.99) > ALPHA


def test_faults_change_what_they_say() -> None:
    rng = np.random.default_rng(0)
    answers = [request(number) for number in range(2000)]
    cut = [less_accepted(0.2).apply(each, rng) for each in answers]
    repeated = request(0, "stable")
    matched = matched_rounds([Pair(replace(each, num_common_tokens=16), repeated) for each in cut])
    share = matched.by_candidate.sum() / matched.by_baseline.sum()
    assert share == pytest.approx(0.8, abs=0.01)
    assert all(each.e2e_latency_s > 0.17 for each in cut if len(each.drafted_per_round) > 4)  # type: ignore[operator]
    assert {each.ttft_s for each in cut} == {0.02}
    slow = slower(0.3).apply(answers[0], rng)
    assert (slow.ttft_s, slow.e2e_latency_s, slow.itl_s) == pytest.approx((0.026, 0.221, 0.013))
    broken = [failing(0.02).apply(each, rng) for each in answers]
    assert 20 < sum(each.failure == "error" for each in broken) < 62
    diverged = [DRILLS[0].apply(each, rng) for each in answers]
    assert 5 < sum(each.answer == "diverged" for each in diverged) < 40
