"""Tests of what the proof refuses to call equal, on scripted servers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipelines.client import CompletionRequest, Generation
from pipelines.client.connection import SPECULATIVE, TARGET_ALONE
from pipelines.errors import (
    DraftproofError,
    EngineFailedError,
    InvalidRequestError,
    ServerBusyError,
    ServerUnavailableError,
)
from pipelines.validation.exact.plan import ADAPTIVE, DraftLength, ProofPlan
from pipelines.validation.exact.sampling_kinds import GREEDY
from pipelines.validation.exact.sections import equality_section, passes_section
from pipelines.validation.exact.verdict import Proof, group_figures
from pipelines.validation.stopping import StoppedError
from tests.unit.client.scripted_client import Change
from tests.unit.validation.scripted_proof import (
    LIMITS,
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


def drafting(length: str) -> Change:
    """Return a server whose recipe, or operator, fixes the draft length."""
    counts = {"total_draft_tokens": 2 * int(length), "total_accepted_draft_tokens": int(length)}
    return when(lambda r, m: m != TARGET_ALONE and by_default(r), draft_length=length, **counts)


FIXED = {
    length: replace(PLAN, limits=replace(LIMITS, default_length=DraftLength.of_server(length)))
    for length in ("0", "2")
}
NOTHING = {"output_ids": (), "text": "", "log_probs": (), "top_log_probs": ()}
COLD = next(asked.number for asked in schedule(PLAN) if asked.model == SPECULATIVE and asked.is_cold)


@pytest.mark.parametrize(
    ("change", "plan", "reason"),
    [
        (when(lambda r, m: True, **NOTHING), PLAN, "no token was compared"),
        (when(lambda r, m: f"nonce {COLD}-" in r.prompt, **NOTHING), PLAN, "cold: no token was compared"),
        (when(lambda r, m: True, total_draft_tokens=0), PLAN, "nothing was drafted"),
        (when(lambda r, m: True, total_accepted_draft_tokens=0), PLAN, "no draft token was ever accepted"),
        (when(lambda r, m: True, total_draft_tokens=1), PLAN, "speculation was off, but 2 tokens"),
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
    assert {each.split()[1] for each in stubborn} == {"k=0-2"}


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
    section = passes_section(proof)
    lengths = {each["draft_length"] for each in section.document["passes"]}
    assert lengths == {"", "0-2", f"the server's {length}"}
    assert "fixed default draft length, so no pass was adaptive" in section.summary
    assert "no pass was adaptive" not in passes_section(run()).summary


def test_a_server_that_drafts_greedily_alone_is_judged_by_that() -> None:
    proof = run(plan=replace(PLAN, limits=replace(LIMITS, kinds=(GREEDY,))))
    assert (proof.failures(), proof.lacks(), proof.verdict) == ([], [], "pass")
    (greedy,) = proof.groups
    assert (greedy["name"], greedy["prompts"]) == ("greedy", len(PROMPTS)), "none is kept for other kinds"
    left_out = "Not compared: greedy, parameters; seeded; seeded, parameters"
    assert left_out in passes_section(proof).summary
    assert "Not compared" not in passes_section(run()).summary


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
        assert not proof.missing and {str(finding.actual) for finding in proof.findings} == {"step failed"}
        assert sum(group["prompts_that_diverged"] for group in proof.groups) == 2
    else:
        ((found, count),) = proof.missing
        reason = f"{count} answers could not be compared, because the server answered: {found}"
        assert (found, proof.lacks(), proof.findings) == (error.message, [reason], ())


def test_a_prompt_that_the_target_cannot_answer_is_missing_not_equal() -> None:
    def refuse(request: CompletionRequest, model: str, given: Generation) -> Generation:
        if request.prompt.endswith("text 1"):
            raise InvalidRequestError(f"too long: {len(request.prompt)} characters")
        return given

    proof = run(refuse)
    assert (proof.failures(), proof.verdict) == ([], "inconclusive")
    ((error, count),) = proof.missing
    section = equality_section(proof)
    reason = f"however, {count} answers could not be compared, because the server answered: too long: "
    assert reason in section.summary
    assert section.document["missing_because"] == [{"error": error, "answers": count}]
    assert {group["prompts"] for group in proof.groups} == {len(PROMPTS) - 1}


def test_a_server_that_goes_away_leaves_nothing_compared() -> None:
    proof = run(lambda request, model, given: raising(ServerUnavailableError("gone"))(given))
    assert proof.verdict == "fail" and "no token was compared" in proof.failures()
    assert "because the server answered: gone" in equality_section(proof).summary


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
    num_compared = sum(each.totals.answers_compared for each in stopped.passes)
    done = f"the proof was stopped; {num_compared} comparisons in 3 passes were finished"
    assert (stopped.verdict, stopped.lacks()) == ("inconclusive", [f"{done}; the rest was not asked"])
    assert "0 rounds of all 12 combinations and 3 passes" in passes_section(stopped).summary
    wrong = run(change_of(with_token(3, 99)))
    assert Proof(wrong.passes[:9], PLAN.max_rate, stopped=StoppedError("x")).verdict == "fail"
    section = equality_section(stopped)
    assert section.document["answers_compared"] > 0 and "the proof was stopped" in section.summary


def test_the_power_of_a_group_is_that_of_its_prompts() -> None:
    (result, *_) = run().passes

    def figures(num_prompts: int) -> dict[str, float]:
        ids = frozenset(str(number) for number in range(num_prompts))
        return group_figures("greedy", [replace(result, prompt_ids=ids)], 0.01)

    group = figures(299)
    assert group["rate_upper_bound_95"] == pytest.approx(1 - 0.05 ** (1 / 299))
    assert group["detectable_rate_95"] == pytest.approx(group["rate_upper_bound_95"])
    assert (group["prompts_still_needed"], figures(298)["prompts_still_needed"]) == (0, 1)
    assert figures(0)["rate_upper_bound_95"] == 1.0
    (wrong, *_) = (each for each in run(change_of(with_token(3, 99))).passes if each.findings)
    diverged = group_figures("greedy", [wrong], 0.01)
    assert diverged["rate_upper_bound_95"] > diverged["detectable_rate_95"]
