"""Tests of the proof on scripted servers: what it compares, counts, and refuses to call equal."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from pipelines.client import CompletionRequest, Generation
from pipelines.client.comparison import first_divergence
from pipelines.client.connection import ENSEMBLE, SPECULATIVE, TARGET_ALONE
from pipelines.command_line.prompts import Prompt
from pipelines.errors import (
    DraftproofError,
    EngineFailedError,
    ServerBusyError,
    ServerUnavailableError,
)
from pipelines.validation.exact.asking import PRIMING_TOKENS, ask_pass
from pipelines.validation.exact.differences import explain
from pipelines.validation.exact.plan import ADAPTIVE, DraftLength, Goal, ProofPlan, passes_of, questions_of
from pipelines.validation.exact.proof import PassProgress, PassResult, prove
from pipelines.validation.exact.verdict import Group, Proof
from tests.unit.client.scripted_client import Change, ScriptedClient, honest

MAX_TOKENS = 12
PROMPTS = tuple(Prompt(f"p{index}", f"text {index}") for index in range(6))
PLAN = ProofPlan(
    prompts=PROMPTS,
    max_tokens=MAX_TOKENS,
    draft_lengths=(*(DraftLength(number, str(number)) for number in range(3)), DraftLength(None, ADAPTIVE)),
    loads=(1, 4),
    num_cold=2,
    num_alone=2,
    mean_gap_s=0.0,
    goal=Goal(max_rate=0.5, num_tokens=100),
)


def run(change: Change = lambda request, model, given: given, plan: ProofPlan = PLAN) -> Proof:
    client = ScriptedClient(change)
    return Proof(prove(plan, [client] * (max(plan.loads) + 1), "nonce"), plan.goal)


def change_of(
    model: str, change: Callable[[Generation], Generation], wanted: Callable[[CompletionRequest], bool]
) -> Change:
    """Change one model's answers to some requests, but not to those that warm the cache."""

    def apply(request: CompletionRequest, asked: str, given: Generation) -> Generation:
        is_compared = request.max_tokens == MAX_TOKENS
        return change(given) if asked == model and is_compared and wanted(request) else given

    return apply


def test_equal_answers_pass_and_everything_compared_is_counted() -> None:
    proof = run()
    assert (proof.failures(), proof.lacks(), proof.verdict) == ([], [], "pass")
    asked = passes_of(PLAN)
    assert [result.asked for result in proof.passes] == list(asked)
    counts = {each.number: len(questions_of(PLAN, each, "nonce")) for each in asked}
    assert [result.num_answers for result in proof.passes] == list(counts.values())
    assert all(result.num_tokens == MAX_TOKENS * result.num_answers for result in proof.passes)
    greedy, seeded = proof.groups
    assert greedy.num_prompts == seeded.num_prompts == len(PROMPTS)
    speculative = sum(counts[each.number] for each in asked if each.model != TARGET_ALONE)
    assert greedy.num_answers + seeded.num_answers == speculative
    assert greedy.num_log_probs > 0
    assert seeded.num_log_probs > 0
    assert sum(group.num_prompt_log_probs for group in proof.groups) > 0
    assert proof.alone
    assert all(result.num_cut_off for result in proof.passes if result.asked.with_cancellations)
    assert not any(result.num_cut_off for result in proof.passes if not result.asked.with_cancellations)


def test_the_reference_is_the_target_alone_once_per_request_and_one_at_a_time() -> None:
    references: Counter[CompletionRequest] = Counter()
    client = ScriptedClient()
    asked: list[tuple[str, CompletionRequest, bool]] = []

    def on_progress(state: PassProgress) -> None:
        if state.is_reference:
            asked.append(client.asked[-1])

    prove(PLAN, [client] * 5, "nonce", on_progress)
    references.update(request for _, request, _ in asked)
    assert {(model, streaming) for model, _, streaming in asked} == {(TARGET_ALONE, False)}
    assert set(references.values()) == {1}
    everything = {q.request for each in passes_of(PLAN) for q in questions_of(PLAN, each, "nonce")}
    assert set(references) == everything


def test_requests_are_sent_as_their_pass_says() -> None:
    for asked in passes_of(PLAN):
        client = ScriptedClient()
        given = ask_pass(PLAN, asked, "nonce", [client] * 5)
        questions = questions_of(PLAN, asked, "nonce")
        assert len(given.answers) == len(questions)
        compared = [
            (model, request, streaming)
            for model, request, streaming in client.asked
            if replace(request, num_draft_tokens=None) in {question.request for question in questions}
        ]
        assert len(compared) == len(questions)
        assert {model for model, _, _ in compared} == {asked.model}
        assert {streaming for _, _, streaming in compared} == {asked.is_streaming}
        sent = {request.num_draft_tokens for _, request, _ in compared}
        assert sent == {asked.draft_length.num_draft_tokens}
        primed = [request for _, request, _ in client.asked if request.max_tokens == PRIMING_TOKENS]
        assert len(primed) == (0 if asked.is_cold else len(questions))
        cut = [request for _, request, _ in client.asked if "nonce cut" in request.prompt]
        assert bool(cut) is bool(client.num_closed) is asked.with_cancellations
        assert bool(given.num_cut_off) is asked.with_cancellations


def test_a_prompt_is_in_the_cache_before_a_warm_request_and_not_before_a_cold_one() -> None:
    client = ScriptedClient()
    prove(replace(PLAN, loads=(1,)), [client] * 2, "nonce")
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
    staggered = sum(result.num_answers for result in proof.passes if result.asked.is_staggered)
    assert len(waits) == staggered
    assert len(set(waits)) == len(waits)
    assert 0.25 < sum(waits) / len(waits) < 1.0


def test_one_wrong_token_fails_and_is_found_where_it_is() -> None:
    def slip(given: Generation) -> Generation:
        return replace(given, output_ids=(*given.output_ids[:3], 99, *given.output_ids[4:]))

    proof = run(change_of(SPECULATIVE, slip, lambda request: "text 2" in request.prompt))
    assert proof.verdict == "fail"
    assert {finding.prompt.prompt_id for finding in proof.findings} == {"p2"}
    divergence = proof.findings[0].divergence
    assert divergence is not None
    assert (divergence.kind, divergence.position, divergence.actual_id) == ("token", 3, 99)
    assert [group.num_diverged for group in proof.groups] == [1, 1]
    assert len(proof.findings) == sum(len(result.findings) for result in proof.speculative)
    assert "answers of draft and target together differ" in proof.failures()[0]


def test_a_target_that_depends_on_its_batch_mates_fails_and_is_named() -> None:
    def drift(request: CompletionRequest, model: str, given: Generation) -> Generation:
        is_alone = threading.current_thread() is threading.main_thread()  # the reference, one at a time
        return given if is_alone or model != TARGET_ALONE else replace(given, finish_reason="stop")

    proof = run(drift)
    assert {finding.asked.model for finding in proof.findings} == {TARGET_ALONE}
    assert any("depend on concurrent requests" in reason for reason in proof.failures())


ANSWER = honest(CompletionRequest("prompt", max_tokens=4, seed=5, num_log_probs=2), TARGET_ALONE)
ASKED = CompletionRequest("prompt", max_tokens=4, seed=5, num_log_probs=2)


def ids(*token_ids: int) -> Generation:
    return replace(ANSWER, output_ids=token_ids)


@pytest.mark.parametrize(
    ("expected", "other", "kind", "position"),
    [
        (ids(1, 2, 3, 4), ids(1, 2, 3, 4), "", -1),
        (ids(1, 2, 3, 4), ids(1, 9, 3, 4), "token", 1),
        (ids(1, 2, 3, 4), ids(1, 2, 3), "length", 3),
        (ids(1, 2, 3, 4), ids(1, 2, 3, 4, 5), "length", 4),
        (ids(1, 2, 3, 4), ids(), "length", 0),
        (ids(1, 2, 3, 4), ids(1, 9), "token", 1),
        (ANSWER, replace(ANSWER, finish_reason="stop"), "finish_reason", 4),
        (ANSWER, replace(ANSWER, text="?"), "text", 4),
        (ANSWER, replace(ANSWER, seed=6), "seed", 4),
        (replace(ANSWER, seed=6), replace(ANSWER, seed=6), "seed", 4),  # both ignored the one asked for
        (ANSWER, replace(ANSWER, log_probs=(*ANSWER.log_probs[:3], -9.0)), "log_probs", 3),
        (ANSWER, replace(ANSWER, log_probs=(-0.0, *ANSWER.log_probs[1:])), "log_probs", 0),
        (ANSWER, replace(ANSWER, log_probs=()), "log_probs", 0),
        (replace(ANSWER, log_probs=()), replace(ANSWER, log_probs=()), "log_probs", 0),
        (
            ANSWER,
            replace(ANSWER, top_log_probs=(*ANSWER.top_log_probs[:2], ((1, -1.0),), ANSWER.top_log_probs[3])),
            "log_probs",
            2,
        ),
        (replace(ANSWER, top_log_probs=()), replace(ANSWER, top_log_probs=()), "log_probs", 0),
    ],
)
def test_the_first_difference_is_found(
    expected: Generation, other: Generation, kind: str, position: int
) -> None:
    divergence = first_divergence(expected, other, ASKED)
    if divergence is None:
        assert kind == ""
    else:
        assert (divergence.kind, divergence.position) == (kind, position)


def test_seeds_that_the_server_drew_may_differ_and_unasked_log_probs_may_be_absent() -> None:
    drawn = replace(ANSWER, seed=1, log_probs=(), top_log_probs=())
    assert (
        first_divergence(drawn, replace(drawn, seed=2), replace(ASKED, seed=None, num_log_probs=None)) is None
    )
    assert first_divergence(drawn, replace(drawn, seed=2)) is None


def test_the_ids_at_a_difference_are_kept_and_an_end_has_none() -> None:
    shorter = first_divergence(ids(1, 2, 3), replace(ids(1, 2), finish_reason="stop"))
    assert shorter is not None
    assert (shorter.expected_id, shorter.actual_id) == (3, None)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda given: replace(given, output_ids=(), text="", log_probs=(), top_log_probs=()),
            "no token was compared",
        ),
        (lambda given: replace(given, total_draft_tokens=0), "nothing was drafted"),
        (lambda given: replace(given, total_accepted_draft_tokens=0), "no draft token was ever accepted"),
        (
            lambda given: replace(given, total_draft_tokens=1),
            "speculation was off, but 4 tokens",
        ),
    ],
)
def test_a_proof_that_tested_nothing_fails(change: Callable[[Generation], Generation], reason: str) -> None:
    proof = run(lambda request, model, given: change(given))
    assert proof.verdict == "fail"
    assert any(reason in failure for failure in proof.failures()), proof.failures()


def test_an_empty_pass_fails_though_others_compared_something() -> None:
    def silent(request: CompletionRequest, model: str, given: Generation) -> Generation:
        return replace(given, output_ids=(), text="") if f"nonce {cold.number}-" in request.prompt else given

    cold = next(asked for asked in passes_of(PLAN) if asked.model == SPECULATIVE and asked.is_cold)
    failures = run(silent).failures()
    assert [reason for reason in failures if reason.endswith("no token was compared")]
    assert not any("at all" in reason for reason in failures)


@pytest.mark.parametrize(
    ("error", "verdict"),
    [(ServerBusyError("full"), "inconclusive"), (EngineFailedError("step failed"), "fail")],
)
def test_no_answer_is_inconclusive_but_a_failure_of_speculation_alone_is_a_failure(
    error: DraftproofError, verdict: str
) -> None:
    def fail(given: Generation) -> Generation:
        raise error

    proof = run(change_of(SPECULATIVE, fail, lambda request: request.prompt == "text 1"))
    assert proof.verdict == verdict
    assert bool(proof.num_missing) is (verdict == "inconclusive")
    if verdict == "fail":
        assert {str(finding.error) for finding in proof.findings} == {"step failed"}
        assert sum(group.num_diverged for group in proof.groups) == 2
    else:
        assert proof.lacks() == [
            f"{proof.num_missing} answers could not be compared, because the server answered: full"
        ]


def test_too_few_prompts_or_tokens_are_inconclusive_and_say_how_many_lack() -> None:
    done = run()
    strict = Proof(done.passes, Goal(max_rate=0.01, num_tokens=10**6))
    assert strict.verdict == "inconclusive"
    assert strict.failures() == []
    assert f"greedy: {299 - len(PROMPTS)} more prompts are needed" in strict.lacks()[0]
    assert any(f"{10**6 - strict.groups[1].num_tokens:,} more tokens" in lack for lack in strict.lacks())


def test_a_pass_without_the_cancellations_that_it_wants_is_inconclusive() -> None:
    def without(result: PassResult) -> PassResult:
        return replace(result, num_cut_off=0)

    proof = Proof(tuple(without(result) for result in run().passes), PLAN.goal)
    assert proof.verdict == "inconclusive"
    assert all("no other request was cancelled" in lack for lack in proof.lacks())


def test_cancellations_that_the_server_refuses_do_not_end_the_proof() -> None:
    def refuse(request: CompletionRequest, model: str, given: Generation) -> Generation:
        if "nonce cut" in request.prompt:
            raise ServerBusyError("full")
        return given

    proof = run(refuse)
    assert proof.verdict == "inconclusive"
    assert proof.num_missing == 0


def test_the_power_of_a_group_is_that_of_its_prompts() -> None:
    group = Group(
        "greedy",
        num_prompts=299,
        num_diverged=0,
        num_answers=3000,
        num_tokens=1,
        num_log_probs=1,
        num_prompt_log_probs=0,
    )
    assert group.rate_bound == pytest.approx(1 - 0.05 ** (1 / 299))
    assert group.detectable_rate(0.95) == pytest.approx(group.rate_bound)
    assert group.detectable_rate(0.99) == pytest.approx(1 - 0.01 ** (1 / 299))
    assert group.num_prompts_lacking(Goal(0.01, 0)) == 0
    assert replace(group, num_prompts=298).num_prompts_lacking(Goal(0.01, 0)) == 1
    assert replace(group, num_diverged=1).rate_bound > group.rate_bound
    assert replace(group, num_prompts=0).rate_bound == 1.0


def test_the_margin_is_the_difference_of_the_targets_log_probabilities() -> None:
    def slip(given: Generation) -> Generation:
        changed = given.output_ids[5] + 3
        return replace(given, output_ids=(*given.output_ids[:5], changed, *given.output_ids[6:]))

    proof = run(change_of(SPECULATIVE, slip, lambda request: True))
    for finding in proof.findings:
        client = ScriptedClient()
        explanation = explain(finding, client)
        assert explanation.logit_margin == pytest.approx(3 / 7), explanation.why_no_margin
        ((model, request, _),) = client.asked
        assert (model, request.max_tokens, request.num_log_probs) == (TARGET_ALONE, 6, 20)
        assert request.min_tokens <= 6
        assert len(explanation.alternatives) == 20


def test_the_margin_says_why_it_is_not_there() -> None:
    def reason(change: Callable[[Generation], Generation], answer: Change | None = None) -> str:
        finding = run(change_of(SPECULATIVE, change, lambda request: True)).findings[0]
        return explain(finding, ScriptedClient(answer or (lambda r, m, given: given))).why_no_margin

    def failing(request: CompletionRequest, model: str, given: Generation) -> Generation:
        raise ServerUnavailableError("gone")

    far = lambda given: replace(given, output_ids=(1000, *given.output_ids[1:]))  # noqa: E731
    assert reason(lambda given: replace(given, text="?")) == "the tokens are equal"
    assert "other answer had ended" in reason(lambda given: replace(given, output_ids=given.output_ids[:4]))
    longer = reason(lambda given: replace(given, output_ids=(*given.output_ids, 1)))
    assert "the target's answer had ended" in longer
    assert "20 likeliest" in reason(far)
    assert "did not answer again" in reason(far, failing)
    assert "was different" in reason(far, lambda r, m, given: replace(given, output_ids=(7,)))
    assert "no log prob" in reason(far, lambda r, m, given: replace(given, top_log_probs=()))
