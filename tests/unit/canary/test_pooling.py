"""Tests of evidence that several servers give together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from pipelines.canary.judge import bets
from pipelines.canary.judge.measures import MedianRatio
from pipelines.canary.judge.observed import ObservedRequest
from pipelines.canary.judge.pairing import pair_up
from pipelines.canary.judge.pooling import Stratified, mixed
from pipelines.canary.judge.quantiles import QuantileRatio
from pipelines.canary.judge.verdict import analyse, judge
from tests.unit.canary.faults import NO_FAULT, Fault, slower
from tests.unit.canary.requests import SLO, limits, recorded_traffic, request

ALPHA = 0.05
SERVERS = ("a", "b", "c")
SPEEDS = (3.0, 1.0, 1.6)  # the first server is the slowest
LAW = {-1.0: 0.5, 0.0: 0.25, 2.0: 0.25}  # stakes with mean 0


def arriving(num: int) -> Iterator[tuple[list[list[float]], float]]:
    """Return all sequences of stakes with their probabilities.

    The first server is alone until it has lost something. Then the second one comes, and they take turns.
    """
    for outcome in itertools.product(LAW, repeat=num):
        stakes: list[list[float]] = [[]]
        for place, stake in enumerate(outcome):
            if len(stakes) == 1 and sum(stakes[0]) < 0:
                stakes.append([])
            stakes[place % len(stakes)].append(stake)
        yield stakes, math.prod(LAW[stake] for stake in outcome)


def expected(mix: Callable[[float, list[float]], float]) -> float:
    mean = 0.0
    for stakes, probability in arriving(6):
        alone = [bets.log_evidence(np.array(each), 1.0) for each in stakes]
        together = bets.log_evidence(np.array(list(itertools.chain(*stakes))), 1.0)
        mean += probability * math.exp(mix(together, alone))
    return mean


def test_mixed_evidence_is_an_e_value_though_the_evidence_decides_when_a_server_comes() -> None:
    assert expected(mixed) == pytest.approx(1.0, rel=1e-12)


def test_weights_that_follow_the_number_of_servers_would_not_be_valid() -> None:
    def over_those_that_came(together: float, alone: list[float]) -> float:
        return float(np.logaddexp.reduce([together, *alone])) - math.log(1 + len(alone))

    assert expected(over_those_that_came) > 1.01


def fleet_traffic(
    rng: np.random.Generator, num: int, faults: tuple[Fault, ...] = (NO_FAULT,) * 3
) -> list[ObservedRequest]:
    """Draw a rollout: the first server alone for a third of the time, then all of them."""
    pool = [each for each in recorded_traffic() if each.arm == "stable" and not each.is_replay]
    found = []
    for number in range(num):
        place = 0 if number < num / 3 else int(rng.integers(3))
        arms = ("candidate", "stable") if place == 0 or number >= num / 3 else ("stable",)
        arm = arms[int(rng.integers(len(arms)))]
        drawn = pool[int(rng.integers(len(pool)))]
        if arm == "candidate":
            drawn = faults[place].apply(drawn, rng)
        found.append(_at(drawn, place, number, arm))
        if number < num / 3:  # the others serve as before
            other = int(rng.integers(1, 3))
            found.append(_at(pool[int(rng.integers(len(pool)))], other, number, "stable"))
    return found


def _at(drawn: ObservedRequest, place: int, number: int, arm: str) -> ObservedRequest:
    speed = SPEEDS[place]
    return replace(
        drawn,
        request_id=f"{place}-{number}",
        arm=arm,  # type: ignore[arg-type]
        arrived_at_s=float(number),
        band="low",
        ttft_s=None if drawn.ttft_s is None else speed * drawn.ttft_s,
        e2e_latency_s=None if drawn.e2e_latency_s is None else speed * drawn.e2e_latency_s,
        answer="",
        server=SERVERS[place],
    )


def _ever_fails(requests: list[ObservedRequest], limited: float, *, knows_servers: bool = True) -> bool:
    """Return whether the judge fails the candidate at any of its looks."""
    by = limits(alpha=limited, min_requests=20)
    if not knows_servers:
        requests = [replace(each, server="") for each in requests]
    return any(analyse(requests[:num], by, SLO).verdict == "fail" for num in range(60, len(requests) + 1, 60))


def test_servers_of_different_speed_seldom_alarm_if_pairs_are_of_one_server() -> None:
    rng = np.random.default_rng(11)
    rollouts = [fleet_traffic(rng, 400) for _ in range(60)]
    alarms = [_ever_fails(each, ALPHA) for each in rollouts]
    assert sum(alarms) <= 3  # 60 rollouts that alarm with 0.05 each: more than 8 once in a hundred
    mixed_up = [_ever_fails(each, ALPHA, knows_servers=False) for each in rollouts[:10]]
    assert sum(mixed_up) >= 8, "the first server is slower, and the candidate is there first"


def test_a_candidate_that_is_worse_on_one_server_alone_is_found_and_the_server_named() -> None:
    rng = np.random.default_rng(12)
    requests = fleet_traffic(rng, 1500, (NO_FAULT, NO_FAULT, slower(0.6)))
    found = analyse(requests, limits(), SLO)
    assert found.verdict == "fail"
    failed = [each for each in found.judged if each.verdict == "fail"]
    assert any("above all at c" in each.named for each in failed)
    together = [replace(each.metric, alone={}) for each in found.judged]
    assert judge(together, limits()).verdict != "fail", "the other servers hide it"


def test_requests_are_paired_within_their_server() -> None:
    requests = [
        request(0, "stable", server="a"),
        request(1, "candidate", server="b"),
        request(2, "stable", server="b"),
        request(3, "candidate", server="a"),
        replace(request(4, "candidate", server="b"), request_id="stable-0", is_replay=True),
    ]
    pairs = pair_up(requests, "candidate", "stable")
    assert [(each.candidate.server, each.baseline.server) for each in pairs] == [("b", "b"), ("a", "a")]


def test_a_stratified_measure_is_all_its_servers_together() -> None:
    rng = np.random.default_rng(13)
    strata = tuple(
        QuantileRatio(*(speed * rng.lognormal(0, 0.4, (2, 90 + 10 * n))), quantile=0.9)
        for n, speed in enumerate(SPEEDS)
    )
    whole = Stratified(strata)
    assert whole.num == 300
    assert whole.estimate == pytest.approx(
        np.average([each.estimate for each in strata], weights=[90, 100, 110])
    )
    assert whole.log_evidence("above", 0.1) == sum(each.log_evidence("above", 0.1) for each in strata)
    for num in (0, 1, 17, 300):
        assert whole.first(num).num == num
    assert Stratified((MedianRatio(np.empty(0), np.empty(0)),)).estimate is None
