"""Tests of how observed regressions become a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pipelines.canary.judge.limits import Limit, Limits
from pipelines.canary.judge.metrics import Metric, metrics_of
from pipelines.canary.judge.verdict import Analysis, Judged, analyse, judge
from pipelines.router.observation import Observation
from tests.unit.canary.requests import NO_ROUNDS, SLO, failed, limits, replay, request

LENIENT = limits(
    errors=Limit(0.05, 0.01),
    timeouts=Limit(0.05, 0.01),
    e2e_tail=Limit(0.5, 0.1),
    quantile=0.9,
    answers=Limit(0.05, 0.01),
)
ACCEPTANCE = {"acceptance_rate"}
TIMED = {"timeouts", "goodput", "ttft", "itl", "e2e_tail", "pauses"}

FIRST_REFUSED = {"drafted_per_round": (4, 3, 4, 4, 4), "accepted_per_round": (0, 3, 3, 4, 1)}
"""The first of four proposals is rejected from its first token on: a third of the accepted tokens is lost."""

LAST_REFUSED = {"drafted_per_round": (4, 4, 4, 0, 4), "accepted_per_round": (4, 3, 3, 0, 1)}
"""The last token of the third proposal is rejected: 8 % of the accepted ones, half of those in position 4."""


def rollout(num: int, **candidate: Any) -> list[Observation]:
    """Return requests of both arms that answer alike unless changed.

    The candidate replays everything that the stable pair answers.
    """
    return [
        *(request(number, "stable") for number in range(num)),
        *(each(number, **candidate) for number in range(num) for each in (request, replay)),
    ]


def found(requests: Sequence[Observation], by: Limits = LENIENT) -> dict[str, Judged]:
    return {each.metric.name: each for each in analyse(requests, by, SLO).judged}


def words(requests: Sequence[Observation], by: Limits = LENIENT) -> dict[str, str]:
    return {name: each.verdict for name, each in found(requests, by).items()}


def metrics(requests: Sequence[Observation], by: Limits = LENIENT) -> dict[str, Metric]:
    return {each.name: each for each in metrics_of(requests, by, SLO)}


def nums(requests: Sequence[Observation]) -> dict[str, int]:
    return {name: each.measure.num for name, each in metrics(requests).items()}


def test_a_good_candidate_passes_once_every_regression_is_shown_to_be_small() -> None:
    analysis = analyse(rollout(600), LENIENT, SLO)
    names = {"answers", "errors", *ACCEPTANCE, *TIMED}
    assert {each.metric.name: each.verdict for each in analysis.judged} == dict.fromkeys(names, "pass")
    assert (analysis.verdict, analysis.action) == ("pass", "promote")


@pytest.mark.parametrize(
    ("candidate", "name"),
    [
        (FIRST_REFUSED, "acceptance_rate"),
        ({"ttft_s": 0.03}, "ttft"),
        ({"e2e_latency_s": 0.24}, "itl"),
        ({"e2e_latency_s": 0.24}, "e2e_tail"),
        ({"ttft_s": 0.11}, "goodput"),
        ({"failure": "timeout"}, "timeouts"),
    ],
)
def test_each_regression_is_found(candidate: dict[str, Any], name: str) -> None:
    verdicts = words(rollout(400, **candidate))
    assert verdicts[name] == "fail"
    assert {verdicts[other] for other in {"errors", "answers", "timeouts"} - {name}} == {"pass"}


def test_a_pause_in_a_few_answers_fails_though_neither_mean_nor_tail_shows_it() -> None:
    """4 % of the answers pause for 0.6 s in the middle: the mean rises by a tenth, the p90 not at all."""

    def pausing(*arms: str) -> list[Observation]:
        return [
            replace(each, longest_pause_s=0.6 if each.arm in arms and each.arrived_at_s % 25 == 0 else 0.03)
            for each in rollout(1200)
        ]

    verdicts = words(pausing("candidate"))
    assert {name: word for name, word in verdicts.items() if word != "pass"} == {"pauses": "fail"}
    assert words(pausing("candidate", "stable"))["pauses"] == "pass", "the stable pair pauses as often"
    always = found([replace(each, longest_pause_s=0.3) for each in rollout(600)])["pauses"]
    assert (always.verdict, always.metric.measure.num) == ("inconclusive", 0)
    assert "pause_s=0.25" in always.named


def test_what_differs_is_named_with_the_number_of_prompts() -> None:
    wrong: dict[str, Any] = {"answer": "diverged", "differs_in": "finish_reason"}
    other = [replay(number, prompt_id=f"p{number // 2}", **wrong) for number in range(4)]
    texts = replay(5, prompt_id="p9", answer="diverged", differs_in="text")
    judged = found([*rollout(60), *other, texts])
    assert judged["answers"].named == "answers (finish_reason of 2 prompts, text of 1 prompt)"
    assert judged["errors"].named == "errors"


def test_metrics_of_one_name_are_judged_each_by_its_own_evidence() -> None:
    tails = [metrics(rollout(600, e2e_latency_s=seconds))["e2e_tail"] for seconds in (0.17, 1.7)]
    assert [each.verdict for each in judge(tails, LENIENT).judged] == ["pass", "fail"]


def test_few_requests_are_inconclusive() -> None:
    analysis = analyse(rollout(60), LENIENT, SLO)
    assert (analysis.verdict, analysis.action) == ("inconclusive", "go_on")


def test_below_the_least_number_nothing_is_judged_but_divergence() -> None:
    lax = replace(LENIENT, errors=Limit(0.5, 0.5))
    assert [words(rollout(num), lax)["errors"] for num in (49, 50)] == ["inconclusive", "pass"]
    bad = [analyse(rollout(num, failure="error"), LENIENT, SLO).verdict for num in (49, 51)]
    assert bad == ["inconclusive", "fail"]
    diverged = analyse([*rollout(5), request(6, answer="diverged")], LENIENT, SLO)
    assert (diverged.reason, diverged.action) == ("fail: answers", "roll_back")


def test_nothing_observed_is_inconclusive() -> None:
    analysis = analyse([], LENIENT, SLO)
    assert analysis.verdict == "inconclusive"
    assert found([])["errors"].bounds.estimate is None
    assert Analysis(()).verdict == "inconclusive"


def test_a_regression_between_both_limits_needs_review() -> None:
    requests = rollout(2000, **LAST_REFUSED)
    rate = found(requests)["acceptance_rate"]
    assert (rate.verdict, rate.needs_review) == ("inconclusive", True)
    held = analyse(requests, replace(LENIENT, goodput=None), SLO)
    assert (held.verdict, held.action) == ("inconclusive", "hold")


@pytest.mark.parametrize(
    ("runtime", "differs_in", "num", "verdict"),
    [
        ("exact", "tokens", 1, "fail"),
        ("batch_dependent", "tokens", 100, "inconclusive"),  # both answers may be the target's
        ("batch_dependent", "text", 100, "fail"),
    ],
)
def test_an_exact_runtime_excuses_no_difference(
    runtime: Any, differs_in: str, num: int, verdict: str
) -> None:
    wrong = (request(400 + each, answer="diverged", differs_in=differs_in) for each in range(num))
    requests = [*rollout(400), *wrong]
    assert words(requests, replace(LENIENT, runtime=runtime))["answers"] == verdict


def test_two_answers_to_one_prompt_are_one_trial() -> None:
    requests = [replay(number, prompt_id=f"p{number % 10}") for number in range(500)]
    assert nums(requests)["answers"] == 10
    assert words([replace(requests[0], answer="diverged"), *requests[1:]])["answers"] == "fail"


def test_failures_count_where_speed_is_compared_and_answers_without_tokens_do_not() -> None:
    others = {
        "candidate-99": failed(99),
        "candidate-98": request(98, num_output_tokens=1, ttft_s=0.17),
        "candidate-97": request(97, num_output_tokens=0, ttft_s=None),
    }
    seen = nums([others.get(each.request_id, each) for each in rollout(100)])
    expected = {"errors": 100, "goodput": 99, "ttft": 99, "itl": 98, "e2e_tail": 100}
    assert {name: seen[name] for name in expected} == expected


def test_replays_tell_of_tokens_acceptance_and_errors_but_not_of_time() -> None:
    stable = [request(number, "stable") for number in range(100)]
    replays = [replay(number, e2e_latency_s=9.0) for number in range(100)]
    of_replays = {"answers", "errors", *ACCEPTANCE}
    assert nums([*stable, *replays]) == {**dict.fromkeys(of_replays, 100), **dict.fromkeys(TIMED, 0)}
    live = [request(number) for number in range(100, 160)]
    both = nums([*stable, *replays, *live])
    assert {both[name] for name in TIMED} == {1}  # one stable request was the latest for all of them
    assert both["errors"] == 100


def test_acceptance_needs_replays_and_nothing_else_does_but_tokens() -> None:
    requests = [each for each in rollout(600) if not each.is_replay]
    needed = {name for name, each in metrics(requests).items() if each.by_replays}
    assert needed == {"answers", "acceptance_rate"}
    assert {name for name, word in words(requests).items() if word != "pass"} == needed


PARTED = {"num_common_tokens": 0, "drafted_per_round": (0, 4, 4, 4, 4), "accepted_per_round": (0, 3, 3, 4, 1)}
NEVER_DRAFTS = dict.fromkeys(NO_ROUNDS, (0,) * 16)


@pytest.mark.parametrize(
    ("num", "changes", "is_judged"), [(95, PARTED, True), (96, PARTED, False), (100, NEVER_DRAFTS, True)]
)
def test_acceptance_is_not_judged_where_another_targets_answers_part_before_anything_is_drafted(
    num: int, changes: dict[str, Any], is_judged: bool
) -> None:
    requests = [
        replace(each, **changes) if each.is_replay and each.arrived_at_s < num else each
        for each in rollout(100)
    ]
    assert ("acceptance_rate" in metrics(requests)) is is_judged
