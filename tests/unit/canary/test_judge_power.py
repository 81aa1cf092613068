"""Tests of the judge's verdicts on simulated good and bad candidates.

Rollouts are drawn from recorded requests (``recorded_traffic``). 200 runs with the default limits gave no
false alarm and found every fault of the drills each time. These tests use fewer, to be fast.
"""

from __future__ import annotations

import pytest
from scipy import stats

from pipelines.bench.reporting.rates import upper_bound
from pipelines.bench.reporting.slo import Slo
from pipelines.canary.judge.limits import Limit, Limits
from tests.unit.canary.faults import DRILLS, NO_FAULT, Fault
from tests.unit.canary.requests import LIMITS, limits, recorded_traffic
from tests.unit.canary.simulate import Run, simulate

RECORDED = recorded_traffic()
SLO_OF_DEMO = Slo(ttft_s=0.2, itl_s=0.01)

NO_MARGIN = Limit(pass_below=0.0, rollback_above=0.0)


def without_margins(alpha: float) -> Limits:
    """Limits without margins: any regression fails, so equal candidates are just at the limit."""
    named = ("errors", "timeouts", "goodput", "acceptance_rate")
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


@pytest.mark.long
def test_no_difference_looked_at_all_the_time_alarms_with_probability_below_alpha() -> None:
    """The 99 % upper bound of the false alarm rate is below alpha, over 11 metrics and 20 looks.

    A true rate of alpha would pass with probability 0.01, one of 0.35 with less than 1e-6.
    """
    found = run(NO_FAULT, without_margins(ALPHA), NUM_RUNS, MOST_PAIRS)
    assert upper_bound(sum(each.verdict == "fail" for each in found), NUM_RUNS, 0.99) < ALPHA
    most = max(alarms for alarms in range(NUM_RUNS) if upper_bound(alarms, NUM_RUNS, 0.99) < ALPHA)
    assert stats.binom.cdf(most, NUM_RUNS, 0.35) < 1e-6
