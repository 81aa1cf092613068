"""Tests of the proof on scripted servers: what it compares, counts, and refuses to call equal."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pipelines.client import CompletionRequest, Generation
from pipelines.client.connection import ENSEMBLE, SPECULATIVE, TARGET_ALONE
from pipelines.command_line.prompts import Prompt
from pipelines.errors import (
    DraftproofError,
    EngineFailedError,
    InvalidRequestError,
    ServerBusyError,
    ServerUnavailableError,
)
from pipelines.validation.exact.asking import PRIMING_TOKENS, ask_pass
from pipelines.validation.exact.differences import explain
from pipelines.validation.exact.plan import (
    ADAPTIVE,
    DraftLength,
    Pass,
    Portion,
    ProofPlan,
    Question,
    passes_of,
    questions_of,
)
from pipelines.validation.exact.proof import Totals, prove
from pipelines.validation.exact.sampling_kinds import GREEDY
from pipelines.validation.exact.sections import covered_section, equality_section
from pipelines.validation.exact.verdict import Group, Proof
from pipelines.validation.stopping import StoppedError
from tests.unit.client.scripted_client import Change, ScriptedClient

MAX_TOKENS = 12
PROMPTS = tuple(Prompt(f"p{index}", f"text {index}") for index in range(6))
PLAN = ProofPlan(
    prompts=PROMPTS,
    draft_lengths=(*(DraftLength(number, str(number)) for number in range(3)), DraftLength(None, ADAPTIVE)),
    loads=(1, 4),
    most_tokens=MAX_TOKENS,
    mean_gap_s=0.0,
    max_rate=0.5,
)
RIGHT: Change = lambda request, model, given: given  # noqa: E731


def schedule(plan: ProofPlan) -> dict[Pass, tuple[Question, ...]]:
    portion = Portion(0, len(PROMPTS), MAX_TOKENS)
    return {asked: questions_of(plan, asked, portion, "nonce") for asked in passes_of(plan)}


def run(change: Change = RIGHT, plan: ProofPlan = PLAN, client: Any = None) -> Proof:
    client = client or ScriptedClient(change)
    return Proof(prove(plan, schedule(plan).items(), "nonce", client), plan.max_rate)


def change_of(
    change: Callable[[Generation], Generation],
    wanted: Callable[[CompletionRequest], object] = lambda request: True,
) -> Change:
    """Change answers of ``generate`` to some requests, but not to those that warm the cache."""

    def apply(request: CompletionRequest, model: str, given: Generation) -> Generation:
        is_compared = model == SPECULATIVE and request.max_tokens == MAX_TOKENS
        return change(given) if is_compared and wanted(request) else given

    return apply


def raising(error: DraftproofError) -> Callable[[Generation], Generation]:
    def fail(given: Generation) -> Generation:
        raise error

    return fail


def with_token(place: int, token_id: int) -> Callable[[Generation], Generation]:
    def slip(given: Generation) -> Generation:
        return replace(
            given, output_ids=(*given.output_ids[:place], token_id, *given.output_ids[place + 1 :])
        )

    return slip


def by_default(request: CompletionRequest) -> bool:
    return request.num_draft_tokens is None


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
        assert lengths == {asked.draft_length.num_draft_tokens}
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
    assert {finding.asked.draft_length.used for finding in proof.findings} == {ADAPTIVE}
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


def when(wanted: Callable[[CompletionRequest, str], object], **changes: Any) -> Change:
    def apply(request: CompletionRequest, model: str, given: Generation) -> Generation:
        return replace(given, **changes) if wanted(request, model) else given

    return apply


def drafting(length: str) -> Change:
    """Return a server whose recipe, or operator, fixes the draft length."""
    counts = {"total_draft_tokens": 2 * int(length), "total_accepted_draft_tokens": int(length)}
    return when(lambda r, m: m != TARGET_ALONE and by_default(r), draft_length=length, **counts)


FIXED = {
    length: replace(PLAN, draft_lengths=(*PLAN.draft_lengths[:3], DraftLength(None, length)))
    for length in ("0", "2")
}
NOTHING = {"output_ids": (), "text": "", "log_probs": (), "top_log_probs": ()}
COLD = next(asked.number for asked in passes_of(PLAN) if asked.model == SPECULATIVE and asked.is_cold)


@pytest.mark.parametrize(
    ("change", "plan", "reason"),
    [
        (when(lambda r, m: True, **NOTHING), PLAN, "no token was compared"),
        (when(lambda r, m: f"nonce {COLD}-" in r.prompt, **NOTHING), PLAN, "cold: no token was compared"),
        (when(lambda r, m: True, total_draft_tokens=0), PLAN, "nothing was drafted"),
        (when(lambda r, m: True, total_accepted_draft_tokens=0), PLAN, "no draft token was ever accepted"),
        (when(lambda r, m: True, total_draft_tokens=1), PLAN, "speculation was off, but 4 tokens"),
        (
            when(lambda r, m: True, prompt_log_probs=(), prompt_top_log_probs=()),
            PLAN,
            "log probabilities of prompts were requested, but none were compared",
        ),
        (RIGHT, FIXED["0"], "k=the server's 0 "),
        (drafting("0"), FIXED["2"], "k=the server's 2 "),
    ],
)
def test_a_proof_that_tested_nothing_fails(change: Change, plan: ProofPlan, reason: str) -> None:
    proof = run(change, plan)
    assert proof.verdict == "fail"
    assert any(reason in failure for failure in proof.failures()), proof.failures()


def test_a_proof_without_any_log_probability_fails() -> None:
    passes = run().passes
    without = [replace(each, totals=replace(each.totals, tokens_with_log_probs=0)) for each in passes]
    assert Proof(tuple(without), PLAN.max_rate).failures() == [
        "log probabilities were requested, but none were compared"
    ]


def lack(change: Change, plan: ProofPlan = PLAN) -> list[str]:
    proof = run(change, plan)
    assert (proof.failures(), proof.verdict) == ([], "inconclusive")
    return proof.lacks()


def test_answers_with_another_draft_length_than_their_pass_are_inconclusive() -> None:
    def set_meanwhile(request: CompletionRequest, model: str) -> bool:
        return model == SPECULATIVE and by_default(request) and request.prompt == "text 1"

    told = lack(when(set_meanwhile, draft_length="4"))
    assert told and all(each.endswith("answers report another draft length: 4") for each in told)
    stubborn = lack(when(lambda request, model: model == SPECULATIVE, draft_length=ADAPTIVE))
    assert {each.split()[1] for each in stubborn} == {"k=0", "k=1", "k=2"}


def test_a_server_that_never_drafts_of_its_own_accord_has_not_shown_its_choice() -> None:
    def never(request: CompletionRequest, model: str) -> bool:
        return model != TARGET_ALONE and by_default(request)

    def mostly(request: CompletionRequest, model: str) -> bool:
        return never(request, model) and request.prompt != "text 1"

    nothing = {"total_draft_tokens": 0}
    why = "adaptive: nothing was drafted in any pass, so the server's choice was not tested"
    assert lack(when(never, **nothing)) == [why]
    assert run(when(mostly, **nothing)).verdict == "pass"


@pytest.mark.parametrize("length", ["0", "2"])
def test_a_fixed_draft_length_of_the_servers_own_is_named_and_not_called_adaptive(length: str) -> None:
    proof = run(drafting(length), FIXED[length])
    assert (proof.failures(), proof.lacks(), proof.verdict) == ([], [], "pass")
    section = covered_section(proof)
    assert section.table is not None
    levels = [row[1] for row in section.table.rows if row[0] == "num_draft_tokens"]
    assert levels == ["0", "1", "2", f"the server's {length}"]
    assert "fixed default draft length, so no pass was adaptive" in section.summary
    assert "no pass was adaptive" not in covered_section(run()).summary


def test_a_server_that_drafts_greedily_alone_is_judged_by_that() -> None:
    proof = run(plan=replace(PLAN, kinds=(GREEDY,)))
    assert (proof.failures(), proof.lacks(), proof.verdict) == ([], [], "pass")
    (greedy,) = proof.groups
    assert (greedy.name, greedy.num_prompts) == ("greedy", len(PROMPTS)), "no prompt is kept for other kinds"
    left_out = "Not compared: greedy, parameters; seeded; seeded, parameters"
    assert left_out in covered_section(proof).summary
    assert "Not compared" not in covered_section(run()).summary


@pytest.mark.parametrize(
    ("error", "verdict"),
    [(ServerBusyError("full"), "inconclusive"), (EngineFailedError("step failed"), "fail")],
)
def test_no_answer_is_inconclusive_but_a_failure_of_speculation_alone_is_a_failure(
    error: DraftproofError, verdict: str
) -> None:
    proof = run(change_of(raising(error), lambda request: request.prompt == "text 1"))
    assert proof.verdict == verdict
    if verdict == "fail":
        assert not proof.missing and {str(finding.error) for finding in proof.findings} == {"step failed"}
        assert sum(group.num_diverged for group in proof.groups) == 2
    else:
        ((found, count),) = proof.missing
        reason = f"{count} answers could not be compared, because the server answered: {found}"
        assert (found, proof.lacks(), proof.findings) == (error.what, [reason], ())


def test_a_prompt_that_the_target_cannot_answer_is_missing_not_equal() -> None:
    def refuse(request: CompletionRequest, model: str, given: Generation) -> Generation:
        if request.prompt.endswith("text 1"):
            raise InvalidRequestError("too long", values=f"{len(request.prompt)} characters")
        return given

    proof = run(refuse)
    assert (proof.failures(), proof.verdict) == ([], "inconclusive")
    ((error, count),) = proof.missing
    section = equality_section(proof, [])
    reason = f"however, {count} answers could not be compared, because the server answered: too long; "
    assert reason in section.summary
    assert section.document["missing_because"] == [{"error": error, "answers": count}]
    assert {group.num_prompts for group in proof.groups} == {len(PROMPTS) - 1}


def test_a_server_that_goes_away_leaves_nothing_compared() -> None:
    proof = run(lambda request, model, given: raising(ServerUnavailableError("gone"))(given))
    assert proof.verdict == "fail" and "no token was compared" in proof.failures()
    assert "because the server answered: gone" in equality_section(proof, []).summary


def test_too_few_prompts_are_inconclusive_and_say_how_many_lack() -> None:
    strict = Proof(run().passes, max_rate=0.01)
    assert (strict.verdict, strict.failures()) == ("inconclusive", [])
    assert f"greedy: {299 - len(PROMPTS)} more prompts are needed" in strict.lacks()[0]


def test_cancellations_that_the_server_refuses_do_not_end_the_proof_but_are_lacking() -> None:
    def refuse(request: CompletionRequest, model: str, given: Generation) -> Generation:
        return raising(ServerBusyError("full"))(given) if "nonce cut" in request.prompt else given

    assert all("no other request was cancelled" in reason for reason in lack(refuse))


def test_a_proof_that_was_stopped_says_why_and_keeps_what_it_has() -> None:
    whole = run()
    stopped = Proof(whole.passes[:3], PLAN.max_rate, stopped=StoppedError("the proof was stopped"))
    assert (stopped.verdict, stopped.lacks()) == ("inconclusive", ["the proof was stopped (after 3 passes)"])
    assert "stopped before all levels" in covered_section(stopped).summary
    wrong = run(change_of(with_token(3, 99)))
    assert Proof(wrong.passes[:9], PLAN.max_rate, stopped=StoppedError("x")).verdict == "fail"
    section = equality_section(stopped, [])
    assert section.document["answers_compared"] > 0 and "the proof was stopped" in section.summary


def test_the_power_of_a_group_is_that_of_its_prompts() -> None:
    group = Group("greedy", num_prompts=299, num_diverged=0, totals=Totals(3000, 1, 1))
    assert group.rate_bound == pytest.approx(1 - 0.05 ** (1 / 299))
    assert group.detectable_rate(0.95) == pytest.approx(group.rate_bound)
    assert group.detectable_rate(0.99) == pytest.approx(1 - 0.01 ** (1 / 299))
    assert group.num_prompts_lacking(0.01) == 0
    assert replace(group, num_prompts=298).num_prompts_lacking(0.01) == 1
    assert replace(group, num_diverged=1).rate_bound > group.rate_bound
    assert replace(group, num_prompts=0).rate_bound == 1.0


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
