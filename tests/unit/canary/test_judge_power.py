"""Tests of the judge's verdicts on simulated good and bad candidates.

Rollouts are drawn from recorded requests (``recorded_traffic``). 200 runs with the default limits gave no
false alarm and found every fault of the drills each time. These tests use fewer, to be fast.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from pipelines.bench.reporting.rates import upper_bound
from pipelines.canary.judge.limits import Limit, Limits, Slo
from pipelines.canary.judge.verdict import Judged, analyse
from pipelines.router.observation import Observation
from tests.unit.canary.faults import DRILLS, NO_FAULT, Fault
from tests.unit.canary.requests import LIMITS, NO_ROUNDS, SLO, limits, recorded_traffic, request
from tests.unit.canary.simulate import Run, simulate

RECORDED = recorded_traffic()
SLO_OF_DEMO = Slo(ttft_s=0.2, itl_s=0.01)

NO_MARGIN = Limit(pass_below=0.0, rollback_above=0.0)


def without_margins(alpha: float) -> Limits:
    """Limits without margins: any regression fails, so equal candidates are just at the limit."""
    named = ("errors", "timeouts", "goodput", "acceptance_rate")
    return limits(
        alpha=alpha, confidence=1 - 1e-12, **dict.fromkeys((*named, "ttft", "itl", "e2e_tail"), NO_MARGIN)
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


NUMBER = 1500
LEFT_OUT = dict.fromkeys(("acceptance_rate", "memory", "cpu_per_token"))
FOREIGN = limits(**LEFT_OUT, runtime="batch_dependent", answers=Limit(0.03, 0.005))


def rollout(noise: float, changed: float, number: int = NUMBER) -> list[Observation]:
    """Return replays of both arms with the same noise, and a candidate that changes some answers as well."""
    rng = np.random.default_rng(7)
    found = []
    for each in range(number):
        found.append(request(each, "stable", **NO_ROUNDS))
        for arm, share in (("stable", 0.0), ("candidate", changed)):
            differs = bool(rng.random() < noise or rng.random() < share)
            answer = {"answer": "diverged", "differs_in": "text"} if differs else {"answer": "equal"}
            found.append(
                request(each, arm, request_id=f"stable-{each}", is_replay=True, **answer, **NO_ROUNDS)
            )
    return found


def answers(requests: list[Observation], limits: Limits = FOREIGN) -> Judged:
    return next(each for each in analyse(requests, limits, SLO).judged if each.metric.name == "answers")


def without_repetition(requests: list[Observation]) -> list[Observation]:
    return [each for each in requests if not (each.arm == "stable" and each.is_replay)]


@pytest.mark.parametrize(
    ("noise", "changed", "verdict"),
    [(0.0, 0.0, "pass"), (0.02, 0.0, "pass"), (0.0, 0.05, "fail"), (0.02, 0.08, "fail")],
)
def test_a_candidate_may_be_as_noisy_as_the_stable_server_and_no_noisier(
    noise: float, changed: float, verdict: str
) -> None:
    judged = answers(rollout(noise, changed))
    assert judged.verdict == verdict
    assert "by the stable arm's own repetition" in judged.metric.detail
    assert abs((judged.metric.measure.estimate or 0.0) - changed) < 0.01


@pytest.mark.parametrize("changed", [0.0, 1.0])
def test_a_stable_server_that_seldom_repeats_itself_gives_no_verdict(changed: float) -> None:
    judged = answers(rollout(0.9, changed))
    assert (judged.verdict, judged.metric.measure.num) == ("inconclusive", 0)
    assert judged.metric.detail.startswith("cannot be judged")


def test_limits_are_tight_where_the_stable_server_repeats_itself() -> None:
    tight = replace(FOREIGN, answers=Limit(0.05, 0.02), answers_repeated=Limit(0.01, 0.003))
    wide = replace(tight, answers_repeated=None)
    changed = rollout(0.0, 0.03)
    assert [answers(changed, each).verdict for each in (wide, tight)] == ["pass", "fail"]
    noisy = rollout(0.05, 0.0)
    assert [answers(noisy, each).verdict for each in (wide, tight)] == ["pass", "pass"]


def test_a_candidate_that_differs_more_often_than_the_stable_server_is_held_below_the_limit_too() -> None:
    wide = replace(FOREIGN, answers=Limit(0.05, 0.04))
    held, left = answers(rollout(0.01, 0.05), wide), answers(rollout(0.01, 0.0, 60), wide)
    assert [(each.verdict, each.needs_review) for each in (held, left)] == [
        ("inconclusive", True),
        ("inconclusive", False),
    ]


def test_answers_that_cannot_be_compared_are_said() -> None:
    free = [replace(each, answer="", differs_in="") for each in rollout(0.0, 0.0, 60)]
    analysis = analyse(free, FOREIGN, SLO)
    assert analysis.lacks_answers
    assert "nothing could be compared" in analysis.reason
    assert not analyse(rollout(0.0, 0.0, 60), FOREIGN, SLO).lacks_answers


def test_an_answer_without_the_stable_servers_repetition_is_no_trial() -> None:
    requests = [*rollout(0.0, 0.0, 1), *without_repetition(rollout(0.0, 1.0))[2:]]
    assert answers(requests).metric.measure.num == 1


def test_a_metric_without_limits_is_not_judged() -> None:
    analysis = analyse(rollout(0.0, 1.0), limits(**LEFT_OUT, answers=None), SLO)
    names = {each.metric.name for each in analysis.judged}
    assert names == {"errors", "timeouts", "goodput", "ttft", "itl", "e2e_tail", "pauses"}
    assert analysis.judged[0].limits.not_judged == ("answers", *LEFT_OUT)
