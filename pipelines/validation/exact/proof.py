"""Compare every kind of request with the target alone, which answers one request at a time.

The proof covers these prompts, parameters, draft lengths and loads. It says nothing about other prompts,
engines or machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace

from pipelines.client import Client, CompletionRequest, Generation
from pipelines.client.connection import TARGET_ALONE
from pipelines.errors import DraftproofError
from pipelines.validation.asking import OnAnswer, ask_each
from pipelines.validation.differences import LATE_OR_NO_ANSWER, Difference, compare_all
from pipelines.validation.exact.asking import ask_pass
from pipelines.validation.exact.comparing import first_difference
from pipelines.validation.exact.plan import Pass, ProofPlan, Question
from pipelines.validation.stopping import stop_error


@dataclass(frozen=True)
class Finding:
    """One answer that differs from the target's, or failed where the target answered.

    Attributes:
        asked: Pass of the request.
        question: What was asked.
        expected: Answer of the target alone.
        actual: Answer of the pass, or its error.
        difference: First difference.
    """

    asked: Pass
    question: Question
    expected: Generation
    actual: Generation | DraftproofError
    difference: Difference


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
        findings: Answers that differ, in the order of the questions.
        num_drafted_while_off: Number of tokens that were drafted for requests without speculation.
        seconds: Wall time of the pass, without the answers of the target alone.
    """

    asked: Pass
    totals: Totals
    prompt_ids: frozenset[str]
    missing: tuple[DraftproofError, ...]
    other_draft_lengths: frozenset[str]
    findings: tuple[Finding, ...]
    num_drafted_while_off: int
    seconds: float = 0.0


def prove(
    plan: ProofPlan,
    schedule: Iterable[tuple[Pass, Sequence[Question]]],
    nonce: str,
    client: Client,
    on_answer: OnAnswer = lambda name, num_done, num_all: None,
) -> tuple[PassResult, ...]:
    """Run all passes, or those up to the one in which the proof is stopped.

    Args:
        plan: Plan of the proof.
        schedule: Passes with their questions; each is taken when the pass before it has ended.
        nonce: Text that no earlier run on this server used.
        client: Client of the server.
        on_answer: Called after each answer.
    """
    reference: dict[CompletionRequest, Generation | DraftproofError] = {}
    results = []

    def ask_alone(request: CompletionRequest) -> Generation:
        return client.generate(request, TARGET_ALONE)

    for asked, questions in schedule:
        given = ask_pass(plan, asked, questions, nonce, client, on_answer)
        # The target alone answers after the pass, so that a cold cache is cold, and one request at a time.
        new = list(dict.fromkeys(each.request for each in questions if each.request not in reference))
        if new:
            alone = ask_each(f"reference answers for {asked}", ask_alone, new, 1, on_answer)
            reference.update(zip(new, alone, strict=True))
        expected = [reference[question.request] for question in questions]
        result = compare_pass(asked, questions, expected, given.answers)
        totals = replace(result.totals, requests_cut_off=given.num_cut_off)
        results.append(replace(result, totals=totals, seconds=given.seconds))
        if stop_error():
            break
    return tuple(results)


def compare_pass(
    asked: Pass,
    questions: Sequence[Question],
    reference: Sequence[Generation | DraftproofError],
    answers: Sequence[Generation | DraftproofError],
) -> PassResult:
    """Compare the answers of a pass with those of the target alone, in the order of the questions."""
    ids = [question.prompt.prompt_id for question in questions]

    def first(place: int, expected: Generation, actual: Generation) -> Difference | None:
        return first_difference(ids[place], expected, actual, questions[place].request)

    compared = compare_all(ids, reference, answers, first, LATE_OR_NO_ANSWER)
    answered = [
        (asked.draft_length.at(place)[1], question.request, expected, actual)
        for place, (question, expected, actual) in enumerate(zip(questions, reference, answers, strict=True))
        if isinstance(expected, Generation) and isinstance(actual, Generation)
    ]
    findings = tuple(
        Finding(asked, question, expected, actual, difference)
        for question, expected, actual, difference in zip(
            questions, reference, answers, compared.differences, strict=True
        )
        if difference and isinstance(expected, Generation)
    )
    errors = (
        [each for each in (reference[place], answers[place]) if isinstance(each, DraftproofError)]
        for place in sorted(compared.missing)
    )
    totals = Totals(
        answers_compared=len(questions) - len(compared.missing),
        tokens_compared=sum(len(expected.output_ids) for _, _, expected, _ in answered),
        tokens_with_log_probs=sum(len(expected.log_probs) for _, _, expected, _ in answered),
        answers_with_prompt_log_probs=sum(request.return_prompt_log_probs for _, request, *_ in answered),
        prompt_tokens_with_log_probs=sum(len(expected.prompt_log_probs) for _, _, expected, _ in answered),
        answers_that_differ=len(findings),
        answers_missing=len(compared.missing),
        total_draft_tokens=sum(actual.total_draft_tokens for *_, actual in answered),
        total_accepted_draft_tokens=sum(actual.total_accepted_draft_tokens for *_, actual in answered),
    )
    return PassResult(
        asked,
        totals,
        frozenset(prompt_id for place, prompt_id in enumerate(ids) if place not in compared.missing),
        tuple(first_error for first_error, *_ in errors),
        frozenset(actual.draft_length for due, _, _, actual in answered if actual.draft_length != due),
        findings,
        sum(actual.total_draft_tokens for due, _, _, actual in answered if due == "0"),
    )
