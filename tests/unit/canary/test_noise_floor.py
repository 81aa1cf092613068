"""Tests of answers that are compared above the noise of a stable server that repeats its own."""

from __future__ import annotations

import numpy as np
import pytest

from pipelines.canary.judge.limits import Limit
from pipelines.canary.judge.verdict import Judged, analyse
from pipelines.router.observation import Observation
from tests.unit.canary.requests import NO_ROUNDS, SLO, limits, request

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


def answers(requests: list[Observation]) -> Judged:
    return next(each for each in analyse(requests, FOREIGN, SLO).judged if each.metric.name == "answers")


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


def test_an_answer_without_the_stable_servers_repetition_is_no_trial() -> None:
    requests = [*rollout(0.0, 0.0, 1), *without_repetition(rollout(0.0, 1.0))[2:]]
    assert answers(requests).metric.measure.num == 1


def test_a_metric_without_limits_is_not_judged() -> None:
    analysis = analyse(rollout(0.0, 1.0), limits(**LEFT_OUT, answers=None), SLO)
    names = {each.metric.name for each in analysis.judged}
    assert names == {"errors", "timeouts", "goodput", "ttft", "itl", "e2e_tail", "pauses"}
    assert analysis.judged[0].limits.not_judged == ("answers", *LEFT_OUT)
