"""Compare every kind of request with the target alone, which answers one request at a time.

The proof covers these prompts, parameters, draft lengths and loads. It says nothing about other prompts,
engines or machines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, replace

from pipelines.client import Client, CompletionRequest, Generation
from pipelines.client.comparison import NO_ANSWER, Divergence, first_divergence
from pipelines.client.connection import TARGET_ALONE
from pipelines.command_line.prompts import Prompt
from pipelines.errors import DraftproofError
from pipelines.validation.asking import OnAnswer
from pipelines.validation.exact.asking import ask_pass
from pipelines.validation.exact.plan import Pass, ProofPlan, Question
from pipelines.validation.stopping import stop_error, stoppable

Outcome = Generation | DraftproofError


@dataclass(frozen=True)
class Finding:
    """One answer that differs from the target's, or failed where the target answered.

    Attributes:
        asked: Pass of the request.
        prompt: Prompt of the request.
        request: Request as it was sent to the target alone.
        expected: Answer of the target alone.
        actual: Answer of the pass; None if it failed.
        divergence: First difference; None if the answer failed.
        error: Error of the answer; None if it did not fail.
    """

    asked: Pass
    prompt: Prompt
    request: CompletionRequest
    expected: Generation
    actual: Generation | None
    divergence: Divergence | None
    error: DraftproofError | None


@dataclass(frozen=True)
class Totals:
    """Counts over some answers, with the names that they have in the report's JSON.

    Attributes:
        answers_compared: Number of answers that were compared.
        tokens_compared: Number of tokens of the target's answers that were compared.
        tokens_with_log_probs: Number of these whose log probabilities were compared too.
        answers_with_prompt_log_probs: Number of answers whose requests asked for those of the prompt.
        prompt_tokens_with_log_probs: Number of prompt tokens whose log probabilities were compared.
        answers_that_differ: Number of answers that differ or failed.
        answers_missing: Number of requests without one of the two answers.
        requests_cut_off: Number of other requests that were cancelled meanwhile.
        num_rounds: Number of target passes of the loop.
        total_draft_tokens: Number of proposed draft tokens.
        total_accepted_draft_tokens: Number of accepted draft tokens.
    """

    answers_compared: int = 0
    tokens_compared: int = 0
    tokens_with_log_probs: int = 0
    answers_with_prompt_log_probs: int = 0
    prompt_tokens_with_log_probs: int = 0
    answers_that_differ: int = 0
    answers_missing: int = 0
    requests_cut_off: int = 0
    num_rounds: int = 0
    total_draft_tokens: int = 0
    total_accepted_draft_tokens: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(*map(sum, zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class PassResult:
    """Result of one pass.

    Attributes:
        asked: Pass that was run.
        totals: Counts of its answers.
        prompt_ids: Prompts whose answers were compared.
        missing: Errors of the requests without one of the two answers.
        other_draft_lengths: Draft lengths that answers reported instead of those that they must.
        num_drafted_while_off: Number of tokens that were drafted for requests without speculation.
        findings: Answers that differ, in the order of the questions.
        seconds: Wall time of the pass, without the answers of the target alone.
    """

    asked: Pass
    totals: Totals
    prompt_ids: frozenset[str]
    missing: tuple[DraftproofError, ...]
    other_draft_lengths: frozenset[str]
    findings: tuple[Finding, ...]
    num_drafted_while_off: int = 0
    seconds: float = 0.0


Schedule = Iterable[tuple[Pass, Sequence[Question]]]
"""Passes in the order in which they run, and their questions."""


def prove(
    plan: ProofPlan,
    schedule: Schedule,
    nonce: str,
    client: Client,
    on_answer: OnAnswer = lambda name, num_done, num_all: None,
    on_pass: Callable[[PassResult], None] = lambda result: None,
) -> tuple[PassResult, ...]:
    """Run all passes, or those up to the one in which the proof is stopped.

    Args:
        plan: Plan of the proof.
        schedule: Its passes; each is taken when the pass before it has ended.
        nonce: Text that no earlier run on this server used.
        client: Client of the server.
        on_answer: Called after each answer.
        on_pass: Called after each pass.
    """
    reference: dict[CompletionRequest, Outcome] = {}
    results = []
    for asked, questions in schedule:
        given = ask_pass(plan, asked, questions, nonce, client, on_answer)
        # The target alone answers after the pass, so that a cold cache is cold, and one request at a time.
        new = dict.fromkeys(q.request for q in questions if q.request not in reference)
        for place, request in enumerate(new):
            on_answer(f"reference answers for {asked}", place, len(new))
            reference[request] = _ask(client, request)
        expected = [reference[question.request] for question in questions]
        result = compare_pass(asked, questions, expected, given.answers)
        totals = replace(result.totals, requests_cut_off=given.num_cut_off)
        results.append(replace(result, totals=totals, seconds=given.seconds))
        on_pass(results[-1])
        if stop_error():
            break
    return tuple(results)


def _ask(client: Client, request: CompletionRequest) -> Outcome:
    try:
        return stoppable(client.generate)(request, TARGET_ALONE)
    except DraftproofError as error:
        return error


def compare_pass(
    asked: Pass,
    questions: Sequence[Question],
    reference: Sequence[Outcome],
    answers: Sequence[Outcome],
) -> PassResult:
    """Compare the answers of a pass with those of the target alone, in the order of the questions."""
    totals = Totals()
    prompt_ids, other_lengths, num_while_off = set(), set(), 0
    missing: list[DraftproofError] = []
    findings = []
    for place, (question, expected, actual) in enumerate(zip(questions, reference, answers, strict=True)):
        if isinstance(expected, DraftproofError):
            missing.append(expected)
            continue
        if isinstance(actual, NO_ANSWER):
            missing.append(actual)
            continue
        prompt_ids.add(question.prompt.prompt_id)
        found = question.prompt, question.request, expected
        if isinstance(actual, DraftproofError):
            totals += Totals(answers_compared=1)
            findings.append(Finding(asked, *found, None, None, actual))
            continue
        totals += _counts(question.request, expected, actual)
        if actual.draft_length != (length := asked.draft_length.used_at(place)):
            other_lengths.add(actual.draft_length)
        num_while_off += actual.total_draft_tokens if length == "0" else 0
        divergence = first_divergence(expected, actual, question.request)
        if divergence is not None:
            findings.append(Finding(asked, *found, actual, divergence, None))
    return PassResult(
        asked,
        replace(totals, answers_that_differ=len(findings), answers_missing=len(missing)),
        frozenset(prompt_ids),
        tuple(missing),
        frozenset(other_lengths),
        tuple(findings),
        num_while_off,
    )


def _counts(request: CompletionRequest, expected: Generation, actual: Generation) -> Totals:
    return Totals(
        answers_compared=1,
        tokens_compared=len(expected.output_ids),
        tokens_with_log_probs=len(expected.log_probs),
        answers_with_prompt_log_probs=int(request.return_prompt_log_probs),
        prompt_tokens_with_log_probs=len(expected.prompt_log_probs),
        num_rounds=actual.num_rounds,
        total_draft_tokens=actual.total_draft_tokens,
        total_accepted_draft_tokens=actual.total_accepted_draft_tokens,
    )
