"""Tests of how observed regressions become a verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipelines.canary.judge.limits import Limit
from pipelines.canary.judge.measures import MeanRatio
from pipelines.canary.judge.metrics import metrics_of
from pipelines.canary.judge.observed import ObservedRequest
from pipelines.canary.judge.verdict import Analysis, Judged, analyse, judge
from pipelines.errors import CanaryError
from tests.unit.canary.requests import SLO, failed, limits, replay, request

LENIENT = limits(
    errors=Limit(0.05, 0.01),
    timeouts=Limit(0.05, 0.01),
    e2e_tail=Limit(0.5, 0.1),
    quantile=0.9,
    survival_positions=4,
    answers=Limit(0.05, 0.01),
    speed_up={"low": Limit(0.0, 0.03)},
)


FIRST_REFUSED = {"drafted_per_round": (4, 3, 4, 4, 4), "accepted_per_round": (0, 3, 3, 4, 1)}
"""The first of four proposals is rejected from its first token on: a third of the accepted tokens is lost."""

LAST_REFUSED = {"drafted_per_round": (4, 4, 4, 0, 4), "accepted_per_round": (4, 3, 3, 0, 1)}
"""The last token of the third proposal is rejected: 8 % of the accepted ones, half of those in position 4."""


def rollout(num: int, **candidate: Any) -> list[ObservedRequest]:
    """Return requests of three arms that answer alike unless changed; the target alone is slower.

    The candidate replays everything that the stable pair answers.
    """
    stable = [request(number, "stable") for number in range(num)]
    control = [
        request(number, "control", e2e_latency_s=0.5, drafted_per_round=(), accepted_per_round=())
        for number in range(num)
    ]
    own = [each(number, **candidate) for number in range(num) for each in (request, replay)]
    return [*stable, *control, *own]


def judged(analysis: Analysis, name: str) -> Judged:
    return next(each for each in analysis.judged if each.metric.name == name)


def words(analysis: Analysis) -> dict[str, str]:
    return {each.metric.name: each.verdict for each in analysis.judged}


def test_a_good_candidate_passes_once_every_loss_is_shown_to_be_small() -> None:
    analysis = analyse(rollout(600), LENIENT, SLO)
    assert set(words(analysis)) == {
        *("answers", "errors", "timeouts", "goodput", "acceptance_rate", "acceptance_length"),
        *("survival/1", "survival/2", "survival/3", "survival/4"),
        *("ttft", "itl", "e2e_tail", "pauses", "speed_up/low"),
    }
    assert set(words(analysis).values()) == {"pass"}
    assert (analysis.verdict, analysis.action, analysis.still_needed) == ("pass", "promote", 0)
    gain = judged(analysis, "speed_up/low").bounds
    assert gain.estimate == pytest.approx(0.17 / 0.5 - 1)
    assert gain.high < 0


def test_a_pause_in_a_few_answers_fails_though_neither_mean_nor_tail_shows_it() -> None:
    """4 % of the answers pause for 0.6 s in the middle: the mean rises by a tenth, the p90 not at all."""

    def pausing(*arms: str) -> list[ObservedRequest]:
        return [
            replace(each, longest_pause_s=0.6 if each.arm in arms and each.arrived_at_s % 25 == 0 else 0.03)
            for each in rollout(1200)
        ]

    found = words(analyse(pausing("candidate"), LENIENT, SLO))
    assert {name for name, word in found.items() if word != "pass"} == {"pauses"}
    assert found["pauses"] == "fail"
    both = words(analyse(pausing("candidate", "stable"), LENIENT, SLO))
    assert both["pauses"] == "pass", "the stable pair pauses as often"


def test_where_most_answers_pause_the_limit_says_nothing_and_that_is_said() -> None:
    requests = [replace(each, longest_pause_s=0.3) for each in rollout(600)]
    [found] = [each for each in analyse(requests, LENIENT, SLO).judged if each.metric.name == "pauses"]
    assert (found.verdict, found.metric.measure.num) == ("inconclusive", 0)
    assert "pause_s=0.25" in found.named


def test_what_differs_is_named_with_the_number_of_prompts() -> None:
    other = [
        replay(number, prompt_id=f"p{number // 2}", answer="diverged", differs_in="finish_reason")
        for number in range(4)
    ]
    texts = replay(5, prompt_id="p9", answer="diverged", differs_in="text")
    analysis = analyse([*rollout(60), *other, texts], LENIENT, SLO)
    assert judged(analysis, "answers").named == "answers (finish_reason of 2 prompts, text of 1 prompt)"
    assert judged(analysis, "errors").named == "errors"


def test_losses_of_one_name_are_judged_each_by_its_own_evidence() -> None:
    harmless, harmful = (
        metrics_of(rollout(600, e2e_latency_s=seconds), LENIENT, SLO) for seconds in (0.17, 1.7)
    )
    tails = [next(each for each in found if each.name == "e2e_tail") for found in (harmless, harmful)]
    assert [each.verdict for each in judge(tails, LENIENT).judged] == ["pass", "fail"]


def test_few_requests_are_inconclusive_and_the_number_that_lacks_is_enough() -> None:
    analysis = analyse(rollout(60), LENIENT, SLO)
    assert (analysis.verdict, analysis.action) == ("inconclusive", "go_on")
    lacking = analysis.still_needed
    assert lacking is not None
    assert lacking > 0
    assert analyse(rollout(60 + lacking), LENIENT, SLO).verdict == "pass"
    assert analyse(rollout(60 + lacking - 2), LENIENT, SLO).verdict == "inconclusive"


def test_the_number_that_lacks_for_a_failure_is_enough_beside_all_other_losses() -> None:
    def slower_in_three_of_five(num: int) -> Judged:
        requests = [
            replace(each, ttft_s=0.03) if each.arm == "candidate" and each.arrived_at_s % 5 < 3 else each
            for each in rollout(num)
        ]
        return judged(analyse(requests, LENIENT, SLO), "ttft")

    early = slower_in_three_of_five(200)
    assert (early.verdict, early.still_needed is None) == ("inconclusive", False)
    needed = 200 + (early.still_needed or 0)
    assert slower_in_three_of_five(needed + 5).verdict == "fail"
    assert slower_in_three_of_five(needed - 40).verdict == "inconclusive"


def test_strong_evidence_of_few_requests_does_not_pass() -> None:
    lax = replace(LENIENT, errors=Limit(0.5, 0.5))
    assert words(analyse(rollout(49), lax, SLO))["errors"] == "inconclusive"
    assert words(analyse(rollout(50), lax, SLO))["errors"] == "pass"


def test_below_the_least_number_nothing_is_judged_but_divergence() -> None:
    bad = analyse(rollout(49, failure="error"), LENIENT, SLO)
    assert bad.verdict == "inconclusive"
    assert judged(bad, "errors").still_needed == 1
    assert analyse(rollout(51, failure="error"), LENIENT, SLO).verdict == "fail"
    diverged = analyse([*rollout(5), request(6, answer="diverged")], LENIENT, SLO)
    assert words(diverged)["answers"] == "fail"
    assert diverged.action == "roll_back"


def test_nothing_observed_is_inconclusive() -> None:
    analysis = analyse([], LENIENT, SLO)
    assert analysis.verdict == "inconclusive"
    assert analysis.still_needed == LENIENT.min_requests
    assert judged(analysis, "errors").bounds.estimate is None
    assert Analysis(()).verdict == "inconclusive"


@pytest.mark.parametrize(
    ("candidate", "name"),
    [
        (FIRST_REFUSED, "acceptance_rate"),
        (FIRST_REFUSED, "acceptance_length"),
        (LAST_REFUSED, "survival/4"),
        ({"ttft_s": 0.03}, "ttft"),
        ({"e2e_latency_s": 0.24}, "itl"),
        ({"e2e_latency_s": 0.24}, "e2e_tail"),
        ({"ttft_s": 0.11}, "goodput"),
        ({"e2e_latency_s": 0.6}, "speed_up/low"),
        ({"failure": "timeout"}, "timeouts"),
    ],
)
def test_each_loss_is_found(candidate: dict[str, Any], name: str) -> None:
    found = words(analyse(rollout(400, **candidate), LENIENT, SLO))
    assert found[name] == "fail"
    unlike = {"errors", "answers"} | ({"timeouts"} if name != "timeouts" else set())
    assert {found[other] for other in unlike} == {"pass"}


def test_a_loss_between_both_limits_holds_and_no_sample_would_decide() -> None:
    analysis = analyse(rollout(2000, **LAST_REFUSED), LENIENT, SLO)
    rate = judged(analysis, "acceptance_rate")
    assert (rate.verdict, rate.needs_review, rate.still_needed) == ("inconclusive", True, None)
    assert words(analysis)["survival/4"] == "fail"
    allowed = replace(LENIENT, survival=Limit(0.6, 0.6))
    held = analyse(rollout(2000, **LAST_REFUSED), allowed, SLO)
    assert (held.verdict, held.action, held.still_needed) == ("inconclusive", "hold", None)


def test_an_exact_runtime_excuses_no_tie_and_a_batch_dependent_one_bounds_non_ties() -> None:
    tied = [*rollout(600), request(600, answer="tie")]
    assert words(analyse(tied, LENIENT, SLO))["answers"] == "fail"
    dependent = replace(LENIENT, runtime="batch_dependent")
    assert words(analyse(tied, dependent, SLO))["answers"] == "pass"

    def with_kind(kind: str, num: int) -> str:
        requests = [*rollout(400), *(request(number, answer=kind) for number in range(400, 400 + num))]
        return words(analyse(requests, dependent, SLO))["answers"]

    assert with_kind("tie", 100) == "pass"
    assert with_kind("unknown", 100) == "inconclusive"  # it may be a tie, so it neither passes nor fails
    assert with_kind("diverged", 100) == "fail"


def test_two_answers_to_one_prompt_are_one_trial() -> None:
    requests = [replay(number, prompt_id=f"p{number % 10}") for number in range(500)]
    analysis = analyse(requests, LENIENT, SLO)
    assert judged(analysis, "answers").metric.measure.num == 10
    first_wrong = [replace(requests[0], answer="diverged"), *requests[1:]]
    assert words(analyse(first_wrong, LENIENT, SLO))["answers"] == "fail"


def test_speeds_are_compared_by_load_band_and_the_slowest_counts_as_twice_what_the_slo_allows() -> None:
    both = limits(speed_up={"low": Limit(0.0, 0.03), "high": Limit(0.03, 0.03)})
    busy = [replace(each, band="high", e2e_latency_s=60.0) for each in rollout(40)]
    measures = {each.name: each.measure for each in metrics_of([*rollout(60), *busy], both, SLO)}
    low, high = measures["speed_up/low"], measures["speed_up/high"]
    assert (low.num, high.num) == (60, 40)
    assert low.estimate == pytest.approx(0.17 / 0.5 - 1)
    assert isinstance(high, MeanRatio)
    assert set(high.candidate) == set(high.baseline) == {1.0}


def test_failures_count_where_speed_is_compared_and_answers_without_tokens_do_not() -> None:
    requests = rollout(100)
    metrics = {metric.name: metric for metric in metrics_of(requests, LENIENT, SLO)}
    assert metrics["itl"].measure.num == 100
    others = {
        "candidate-99": failed(99),
        "candidate-98": request(98, num_output_tokens=1, ttft_s=0.17),
        "candidate-97": request(97, num_output_tokens=0, ttft_s=None),
    }
    requests = [others.get(each.request_id, each) for each in requests]
    measures = {metric.name: metric.measure for metric in metrics_of(requests, LENIENT, SLO)}
    nums = {
        name: measures[name].num for name in ("errors", "goodput", "ttft", "itl", "e2e_tail", "speed_up/low")
    }
    assert nums == {"errors": 100, "goodput": 99, "ttft": 99, "itl": 98, "e2e_tail": 100, "speed_up/low": 99}


def test_replays_tell_of_tokens_acceptance_and_errors_but_not_of_time() -> None:
    stable = [request(number, "stable") for number in range(100)]
    replays = [replay(number, e2e_latency_s=9.0) for number in range(100)]
    nums = {metric.name: metric.measure.num for metric in metrics_of([*stable, *replays], LENIENT, SLO)}
    assert {name for name, num in nums.items() if num == 100} == {
        *("answers", "errors", "acceptance_rate", "acceptance_length"),
        *(f"survival/{position}" for position in range(1, 5)),
    }
    timed = {"timeouts", "goodput", "ttft", "itl", "e2e_tail", "pauses"}
    assert {name for name, num in nums.items() if num == 0} == timed
    assert "speed_up/low" not in nums, "the candidate has answered no client"
    live = [request(number) for number in range(100, 160)]
    both = {metric.name: metric.measure for metric in metrics_of([*stable, *replays, *live], LENIENT, SLO)}
    assert {both[name].num for name in timed} == {1}  # one stable request was the latest for all of them
    assert both["errors"].num == 100


def test_a_load_band_without_a_limit_is_refused() -> None:
    with pytest.raises(CanaryError, match="a load band has no limit; odd; speed_up names low"):
        analyse([request(0, band="odd")], LENIENT, SLO)


def test_a_load_band_in_which_few_requests_arrive_withholds_no_verdict() -> None:
    bands = replace(LENIENT, speed_up={"low": Limit(0.0, 0.03), "high": Limit(0.0, 0.03)}, least_share=0.1)
    few = [replace(each, band="high") for each in rollout(60)]
    replays = [replay(number, band="high") for number in range(600)]
    assert "speed_up/high" not in words(analyse(rollout(600), bands, SLO))
    assert "speed_up/high" not in words(analyse([*rollout(541), *few, *replays], bands, SLO))
    assert words(analyse([*rollout(539), *few], bands, SLO))["speed_up/high"] == "pass"
    seldom = [each for each in few if each.arrived_at_s < 15]
    assert words(analyse([*rollout(30), *seldom], bands, SLO))["speed_up/high"] == "inconclusive"


def test_a_draft_position_that_is_seldom_drafted_withholds_no_verdict() -> None:
    def with_deep_ones(num: int) -> dict[str, str]:
        """Return answers of which so many draft four tokens in a round, and the others two."""
        shallow = {"drafted_per_round": (2, 2, 2, 2, 2, 0), "accepted_per_round": (2, 2, 2, 2, 2, 0)}
        requests = [
            replace(each, **shallow) if each.drafted_per_round and each.arrived_at_s >= num else each
            for each in rollout(600)
        ]
        return words(analyse(requests, LENIENT, SLO))

    assert set(with_deep_ones(30)) >= {"survival/1", "survival/2"}
    assert not {"survival/3", "survival/4"} & set(with_deep_ones(30))
    assert with_deep_ones(31)["survival/4"] == "inconclusive"


def test_acceptance_needs_replays_and_nothing_else_does_but_tokens() -> None:
    requests = [each for each in rollout(600) if not each.is_replay]
    needed = {each.name for each in metrics_of(requests, LENIENT, SLO) if each.by_replays}
    assert needed == {"answers", "acceptance_rate", "acceptance_length"}
    lacking = {name for name, word in words(analyse(requests, LENIENT, SLO)).items() if word != "pass"}
    assert lacking == needed


def test_a_load_band_that_the_candidates_clients_never_met_withholds_no_verdict() -> None:
    """Replays add to the load: in the shadow it may be higher than in the steps that follow."""
    bands = replace(LENIENT, speed_up={"low": Limit(0.0, 0.03), "high": Limit(0.0, 0.03)})
    shadow = [replace(each, band="high") for each in rollout(200) if each.is_replay or each.arm == "stable"]
    assert "speed_up/high" not in words(analyse([*shadow, *rollout(600)], bands, SLO))


def test_acceptance_is_not_judged_where_the_answers_of_another_target_part_before_anything_is_drafted() -> (
    None
):
    def names(num_parted: int, **changes: Any) -> set[str]:
        requests = [
            replace(each, **changes) if each.is_replay and each.arrived_at_s < num_parted else each
            for each in rollout(100)
        ]
        return {each.name for each in metrics_of(requests, LENIENT, SLO)}

    parted = {
        "num_common_tokens": 0,
        "drafted_per_round": (0, 4, 4, 4, 4),
        "accepted_per_round": (0, 3, 3, 4, 1),
    }
    assert "acceptance_rate" in names(95, **parted)
    assert not {"acceptance_rate", "acceptance_length", "survival/1"} & names(96, **parted)
    never_drafts = {"drafted_per_round": (0,) * 16, "accepted_per_round": (0,) * 16}
    assert "acceptance_rate" in names(100, **never_drafts), (
        "one that says the same and drafts nothing is judged"
    )
