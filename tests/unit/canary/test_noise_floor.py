"""Tests of answers that are compared above the noise of a stable server that repeats its own."""

from __future__ import annotations

import numpy as np
import pytest

from pipelines.canary.judge.limits import Limit, Limits
from pipelines.canary.judge.observed import ObservedRequest
from pipelines.canary.judge.verdict import Judged, analyse
from tests.unit.canary.requests import SLO, limits, request

NUMBER = 1500
LEFT_OUT = dict.fromkeys(
    ("acceptance_rate", "acceptance_length", "survival", "manifest", "memory", "cpu_per_token", "speed_up")
)
FOREIGN = limits(**LEFT_OUT, runtime="batch_dependent", answers=Limit(0.03, 0.005))


def repeated(number: int, arm: str, differs: bool) -> ObservedRequest:
    return request(
        number,
        arm,
        request_id=f"stable-{number}",
        is_replay=True,
        answer="diverged" if differs else "equal",
        differs_in="text" if differs else "",
        drafted_per_round=(),
        accepted_per_round=(),
    )


def rollout(noise: float, changed: float, number: int = NUMBER) -> list[ObservedRequest]:
    """Return replays of both arms with the same noise, and a candidate that changes some answers as well."""
    rng = np.random.default_rng(7)
    found = []
    for each in range(number):
        found += [
            request(each, "stable", drafted_per_round=(), accepted_per_round=()),
            repeated(each, "stable", bool(rng.random() < noise)),
            repeated(each, "candidate", bool(rng.random() < noise or rng.random() < changed)),
        ]
    return found


def answers(requests: list[ObservedRequest], by: Limits = FOREIGN) -> Judged:
    return next(each for each in analyse(requests, by, SLO).judged if each.metric.name == "answers")


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_a_candidate_that_is_as_noisy_as_the_stable_server_passes(noise: float) -> None:
    judged = answers(rollout(noise, 0.0))
    assert judged.verdict == "pass"
    assert abs(judged.metric.measure.estimate or 0.0) < 0.01


@pytest.mark.parametrize(("noise", "changed"), [(0.0, 0.05), (0.02, 0.08)])
def test_a_candidate_that_differs_more_often_fails(noise: float, changed: float) -> None:
    judged = answers(rollout(noise, changed))
    assert judged.verdict == "fail"
    assert "by the stable arm's own repetition" in judged.metric.detail


def test_without_the_noise_floor_a_noisy_pair_would_fail() -> None:
    """The control of these tests: the same candidate, judged by its differences alone."""
    alone = [each for each in rollout(0.05, 0.0) if not (each.arm == "stable" and each.is_replay)]
    assert answers(alone).verdict == "fail"


@pytest.mark.parametrize("changed", [0.0, 1.0])
def test_a_stable_server_that_seldom_repeats_itself_gives_no_verdict(changed: float) -> None:
    judged = answers(rollout(0.9, changed))
    assert (judged.verdict, judged.metric.measure.num) == ("inconclusive", 0)
    assert judged.metric.detail.startswith("cannot be judged")


def test_an_answer_without_the_stable_servers_repetition_is_no_trial() -> None:
    missing = [each for each in rollout(0.0, 1.0) if not (each.arm == "stable" and each.is_replay)]
    few = rollout(0.0, 0.0, 1)
    assert answers([*few, *missing[3:]]).metric.measure.num == 1


def test_a_metric_without_limits_is_not_judged() -> None:
    analysis = analyse(rollout(0.0, 1.0), limits(**LEFT_OUT, answers=None), SLO)
    names = {each.metric.name for each in analysis.judged}
    assert names == {"errors", "timeouts", "goodput", "ttft", "itl", "e2e_tail", "pauses"}
    assert analysis.judged[0].limits.not_judged == ("answers", *LEFT_OUT)
