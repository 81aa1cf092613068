"""Tests of what the proof asks scripted servers, compares and finds."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from pipelines.client import CompletionRequest, Generation
from pipelines.client.connection import ENSEMBLE, SPECULATIVE, TARGET_ALONE
from pipelines.validation.exact.asking import PRIMING_TOKENS, ask_pass
from pipelines.validation.exact.comparing import first_difference
from pipelines.validation.exact.plan import ADAPTIVE
from pipelines.validation.exact.proof import prove
from pipelines.validation.exact.sections import alone_section
from pipelines.validation.exact.verdict import Proof
from tests.unit.client.scripted_client import ScriptedClient, honest
from tests.unit.validation.scripted_proof import (
    LIMITS,
    MAX_TOKENS,
    PLAN,
    PROMPTS,
    by_default,
    change_of,
    run,
    schedule,
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
    assert greedy["prompts"] == seeded["prompts"] == len(PROMPTS)
    assert greedy["answers"] + seeded["answers"] == sum(
        len(questions) for each, questions in asked.items() if each.model != TARGET_ALONE
    )
    assert greedy["tokens_with_log_probs"] and seeded["tokens_with_log_probs"]
    assert greedy["prompt_tokens_with_log_probs"] + seeded["prompt_tokens_with_log_probs"] and proof.alone


def test_the_reference_is_the_target_alone_once_per_request_and_one_at_a_time() -> None:
    client: Any = ScriptedClient()
    references: list[list[tuple[str, CompletionRequest, bool]]] = []

    def on_answer(name: str, num_done: int, num_all: int) -> None:
        if name.startswith("reference answers") and num_done == 0:
            references.append(client.asked[:])
        elif name.startswith("reference answers") and num_done == num_all:
            references[-1] = client.asked[len(references[-1]) :]
            assert len(references[-1]) == num_all

    prove(PLAN, schedule(PLAN).items(), "nonce", client, on_answer)
    asked = [each for of_pass in references for each in of_pass]
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
        assert lengths == {asked.draft_length.at(place)[0] for place in range(len(questions))}
        primed = [request for _, request, _ in client.asked if request.max_tokens == PRIMING_TOKENS]
        assert Counter(primed) == Counter(() if asked.is_cold else set(primed)), "once, however many ask it"
        prompts = {(request.prompt, request.prompt_ids) for request in wanted}
        assert len(prompts) <= len(primed) <= len(wanted) or asked.is_cold
        cut = [request for _, request, _ in client.asked if "nonce cut" in request.prompt]
        assert bool(cut) is bool(client.num_closed) is bool(given.num_cut_off) is asked.with_cancellations


def test_a_prompt_is_in_the_cache_before_a_warm_request_and_not_before_a_cold_one() -> None:
    client: Any = ScriptedClient()
    run(plan=replace(PLAN, limits=replace(LIMITS, max_requests=2)), client=client)
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
    assert {finding.difference.prompt_id for finding in proof.findings} == {"p2"}
    first = proof.findings[0].difference
    assert (first.place, first.actual) == ("token 3", "99")
    assert [group["prompts_that_diverged"] for group in proof.groups] == [1, 1]
    assert len(proof.findings) == sum(result.totals.answers_that_differ for result in proof.speculative)
    assert "answers of draft and target together differ" in proof.failures()[0]


def test_adaptive_answers_are_compared_like_all_others() -> None:
    proof = run(change_of(lambda given: replace(given, text="?"), by_default))
    assert {finding.asked.draft_length.name for finding in proof.findings} == {ADAPTIVE}
    num_adaptive = sum(result.totals.answers_compared for result in proof.adaptive)
    through_ensemble = sum(result.asked.model == ENSEMBLE for result in proof.adaptive)
    assert 0 < len(proof.findings) < num_adaptive and through_ensemble
    assert {result.asked.num_at_once for result in proof.adaptive} == set(LIMITS.loads)


def test_a_target_that_depends_on_its_batch_mates_fails_and_is_named() -> None:
    class Drifting(ScriptedClient):
        is_alone = False

        def answer(self, request: CompletionRequest, model: str) -> Generation:
            given = super().answer(request, model)
            drifts = model == TARGET_ALONE and not self.is_alone
            return replace(given, finish_reason="stop") if drifts else given

    client: Any = Drifting()

    def on_answer(name: str, num_done: int, num_all: int) -> None:
        client.is_alone = name.startswith("reference answers")

    proof = Proof(prove(PLAN, schedule(PLAN).items(), "nonce", client, on_answer), PLAN.max_rate)
    assert {finding.asked.model for finding in proof.findings} == {TARGET_ALONE}
    assert any("depend on concurrent requests" in reason for reason in proof.failures())
    section = alone_section(proof)
    assert section.verdict == "fail" and "depend on the batch" in section.summary


ASKED = CompletionRequest("prompt", max_tokens=4, seed=5, num_log_probs=2, return_prompt_log_probs=True)
ANSWER = honest(ASKED, TARGET_ALONE)
TOP, OF_PROMPT, TOP_OF_PROMPT = ANSWER.top_log_probs, ANSWER.prompt_log_probs, ANSWER.prompt_top_log_probs


def ids(*token_ids: int) -> Generation:
    return replace(ANSWER, output_ids=token_ids)


def less(log_prob: float) -> float:
    """Return the next smaller number, which differs in the last bit."""
    return math.nextafter(log_prob, -math.inf)


def but(**changes: Any) -> tuple[Generation, Generation]:
    return ANSWER, replace(ANSWER, **changes)


LOG_PROBS, OF_PROMPTS = "log probabilities of token", "log probabilities of prompt token"


@pytest.mark.parametrize(
    ("pair", "place"),
    [
        ((ids(1, 2, 3, 4), ids(1, 2, 3, 4)), None),
        ((ids(1, 2, 3, 4), ids(1, 9, 3, 4)), "token 1"),
        ((ids(1, 2, 3, 4), ids(1, 2, 3)), "token 3"),
        ((ids(1, 2, 3, 4), ids(1, 2, 3, 4, 5)), "token 4"),
        ((ids(1, 2, 3, 4), ids()), "token 0"),
        ((ids(1, 2, 3, 4), ids(1, 9)), "token 1"),
        (but(finish_reason="stop"), "finish_reason"),
        (but(text="?"), "text"),
        (but(seed=6), "seed"),
        ((replace(ANSWER, seed=6),) * 2, "seed"),  # both ignored the one asked for
        (but(log_probs=(*ANSWER.log_probs[:3], less(ANSWER.log_probs[3]))), f"{LOG_PROBS} 3"),
        (but(log_probs=(-0.0, *ANSWER.log_probs[1:])), f"{LOG_PROBS} 0"),
        (but(log_probs=()), f"{LOG_PROBS}s"),
        ((replace(ANSWER, log_probs=()),) * 2, f"{LOG_PROBS}s"),
        ((replace(ANSWER, log_probs=(math.nan, *ANSWER.log_probs[1:])),) * 2, None),
        (but(top_log_probs=(*TOP[:2], ((1, -1.0),), TOP[3])), f"{LOG_PROBS} 2"),
        ((replace(ANSWER, top_log_probs=()),) * 2, f"{LOG_PROBS}s"),
        (but(prompt_log_probs=(OF_PROMPT[0], less(OF_PROMPT[1]), OF_PROMPT[2])), f"{OF_PROMPTS} 2"),
        (but(prompt_top_log_probs=(*TOP_OF_PROMPT[:2], ((2, less(-2 / 7)),))), f"{OF_PROMPTS} 3"),
        (but(prompt_log_probs=(), prompt_top_log_probs=()), f"{OF_PROMPTS}s"),
    ],
)
def test_the_first_difference_is_found(pair: tuple[Generation, Generation], place: str | None) -> None:
    found = first_difference("p", *pair, ASKED)
    assert (found and found.place) == place


def test_seeds_that_the_server_drew_may_differ_and_unasked_log_probs_may_be_absent() -> None:
    drawn = replace(ANSWER, seed=1, log_probs=(), top_log_probs=())
    other = replace(drawn, seed=2)
    assert first_difference("p", drawn, other, replace(ASKED, seed=None, num_log_probs=None)) is None
    assert first_difference("p", drawn, other) is None
