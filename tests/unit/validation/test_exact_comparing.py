"""Tests of what the proof asks scripted servers, compares and finds."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pipelines.client import CompletionRequest, Generation
from pipelines.client.connection import ENSEMBLE, SPECULATIVE, TARGET_ALONE
from pipelines.errors import ServerBusyError
from pipelines.validation.exact.asking import PRIMING_TOKENS, ask_pass
from pipelines.validation.exact.differences import explain
from pipelines.validation.exact.plan import ADAPTIVE
from pipelines.validation.exact.proof import prove
from tests.unit.client.scripted_client import Change, ScriptedClient
from tests.unit.validation.scripted_proof import (
    MAX_TOKENS,
    PLAN,
    PROMPTS,
    RIGHT,
    by_default,
    change_of,
    raising,
    run,
    schedule,
    when,
    with_token,
)


def test_equal_answers_pass_and_everything_compared_is_counted() -> None:
    proof = run()
    assert (proof.failures(), proof.lacks(), proof.verdict) == ([], [], "pass")
    asked = schedule(PLAN)
    assert [result.asked for result in proof.passes] == list(asked)
    assert [result.totals.answers_compared for result in proof.passes] == list(map(len, asked.values()))
    for result in proof.passes:
        assert result.totals.tokens_compared == MAX_TOKENS * result.totals.answers_compared
        assert bool(result.totals.requests_cut_off) is result.asked.with_cancellations
    greedy, seeded = proof.groups
    assert greedy.num_prompts == seeded.num_prompts == len(PROMPTS)
    both = greedy.totals + seeded.totals
    assert both.answers_compared == sum(
        len(questions) for each, questions in asked.items() if each.model != TARGET_ALONE
    )
    assert greedy.totals.tokens_with_log_probs and seeded.totals.tokens_with_log_probs
    assert both.prompt_tokens_with_log_probs and proof.alone


def test_the_reference_is_the_target_alone_once_per_request_and_one_at_a_time() -> None:
    client: Any = ScriptedClient()
    references: list[int] = []

    def on_answer(name: str, num_done: int, num_all: int) -> None:
        if name.startswith("reference"):
            references.append(len(client.asked))

    prove(PLAN, schedule(PLAN).items(), "nonce", client, on_answer)
    asked = [client.asked[place] for place in references]
    assert {(model, streaming) for model, _, streaming in asked} == {(TARGET_ALONE, False)}
    everything = {question.request for questions in schedule(PLAN).values() for question in questions}
    assert Counter(request for _, request, _ in asked) == Counter(everything)


def test_requests_are_sent_as_their_pass_says() -> None:
    for asked, questions in schedule(PLAN).items():
        client: Any = ScriptedClient()
        given = ask_pass(PLAN, asked, questions, "nonce", client)
        wanted = {question.request for question in questions}
        compared = [each for each in client.asked if replace(each[1], num_draft_tokens=None) in wanted]
        assert len(given.answers) == len(compared) == len(questions)
        assert {(model, streaming) for model, _, streaming in compared} == {(asked.model, asked.is_streaming)}
        lengths = {request.num_draft_tokens for _, request, _ in compared}
        assert lengths == set(asked.draft_length.requested[: len(questions)])
        primed = [request for _, request, _ in client.asked if request.max_tokens == PRIMING_TOKENS]
        assert Counter(primed) == Counter(() if asked.is_cold else set(primed)), "once, however many ask it"
        prompts = {(request.prompt, request.prompt_ids) for request in wanted}
        assert len(prompts) <= len(primed) <= len(wanted) or asked.is_cold
        cut = [request for _, request, _ in client.asked if "nonce cut" in request.prompt]
        assert bool(cut) is bool(client.num_closed) is bool(given.num_cut_off) is asked.with_cancellations


def test_a_prompt_is_in_the_cache_before_a_warm_request_and_not_before_a_cold_one() -> None:
    client: Any = ScriptedClient()
    run(plan=replace(PLAN, loads=(1,)), client=client)
    seen: dict[str, set[str]] = {SPECULATIVE: set(), TARGET_ALONE: set(), ENSEMBLE: set()}
    num_cold = 0
    for model, request, _ in client.asked:
        if request.prompt.startswith("# nonce ") and model == SPECULATIVE:
            assert request.prompt not in seen[SPECULATIVE] | seen[TARGET_ALONE]
            num_cold += 1
        elif model == SPECULATIVE and request.max_tokens == MAX_TOKENS:
            assert request.prompt in seen[SPECULATIVE]
        seen[model].add(request.prompt)
    assert num_cold > 10


def test_staggered_requests_wait_at_random_and_the_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("pipelines.validation.exact.asking.time.sleep", waits.append)
    proof = run(plan=replace(PLAN, mean_gap_s=0.5))
    staggered = [result.totals for result in proof.passes if result.asked.is_staggered]
    assert len(waits) == len(set(waits)) == sum(totals.answers_compared for totals in staggered)
    assert 0.25 < sum(waits) / len(waits) < 1.0


def test_one_wrong_token_fails_and_is_found_where_it_is() -> None:
    proof = run(change_of(with_token(3, 99), lambda request: "text 2" in request.prompt))
    assert proof.verdict == "fail"
    assert {finding.prompt.prompt_id for finding in proof.findings} == {"p2"}
    divergence = proof.findings[0].divergence
    assert divergence is not None
    assert (divergence.kind, divergence.position, divergence.actual_id) == ("token", 3, 99)
    assert [group.num_diverged for group in proof.groups] == [1, 1]
    assert len(proof.findings) == sum(result.totals.answers_that_differ for result in proof.speculative)
    assert "answers of draft and target together differ" in proof.failures()[0]


def test_adaptive_answers_are_compared_like_all_others() -> None:
    proof = run(change_of(lambda given: replace(given, text="?"), by_default))
    assert {finding.asked.draft_length.used for finding in proof.findings} == {(ADAPTIVE,)}
    num_adaptive = sum(result.totals.answers_compared for result in proof.adaptive)
    through_ensemble = sum(result.asked.model == ENSEMBLE for result in proof.adaptive)
    assert 0 < len(proof.findings) < num_adaptive and through_ensemble
    assert {result.asked.num_at_once for result in proof.adaptive} == set(PLAN.loads)


def test_a_target_that_depends_on_its_batch_mates_fails_and_is_named() -> None:
    def drift(request: CompletionRequest, model: str, given: Generation) -> Generation:
        is_alone = threading.current_thread() is threading.main_thread()  # the reference, one at a time
        return given if is_alone or model != TARGET_ALONE else replace(given, finish_reason="stop")

    proof = run(drift)
    assert {finding.asked.model for finding in proof.findings} == {TARGET_ALONE}
    assert any("depend on concurrent requests" in reason for reason in proof.failures())


def test_the_margin_is_the_difference_of_the_targets_log_probabilities() -> None:
    proof = run(change_of(lambda given: with_token(5, given.output_ids[5] + 3)(given)))
    for finding in proof.findings:
        client: Any = ScriptedClient()
        explanation = explain(finding, client)
        assert explanation.logit_margin == pytest.approx(3 / 7), explanation.why_no_margin
        ((model, request, _),) = client.asked
        assert (model, request.max_tokens, request.num_log_probs) == (TARGET_ALONE, 6, 20)
        assert request.min_tokens <= 6
        assert len(explanation.alternatives) == 20


@pytest.mark.parametrize(
    ("change", "answer", "reason"),
    [
        (lambda given: replace(given, text="?"), RIGHT, "the tokens are equal"),
        (lambda given: replace(given, output_ids=given.output_ids[:4]), RIGHT, "other answer had ended"),
        (lambda given: replace(given, output_ids=(*given.output_ids, 1)), RIGHT, "the target's answer had"),
        (with_token(0, 1000), RIGHT, "20 likeliest"),
        (with_token(0, 1000), lambda r, m, given: raising(ServerBusyError("x"))(given), "not answer again"),
        (with_token(0, 1000), when(lambda r, m: True, output_ids=(7,)), "was different"),
        (with_token(0, 1000), when(lambda r, m: True, top_log_probs=()), "no log prob"),
    ],
)
def test_the_margin_says_why_it_is_not_there(
    change: Callable[[Generation], Generation], answer: Change, reason: str
) -> None:
    finding, client = run(change_of(change)).findings[0], ScriptedClient(answer)
    assert reason in explain(finding, client).why_no_margin  # type: ignore[arg-type]
