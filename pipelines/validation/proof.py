"""Compares every way of asking with the target alone, asked one request at a time.

What it proves: for these prompts, with these parameters, draft lengths and loads, the answers are the
target's own. What it does not prove: anything about other prompts, engines or machines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pipelines.client import CompletionRequest, Generation
from pipelines.errors import (
    DraftproofError,
    RequestCancelledError,
    RequestTimeoutError,
    ServerBusyError,
    ServerUnavailableError,
)
from pipelines.prompts import Prompt
from pipelines.validation.asking import Asked, ask_pass
from pipelines.validation.comparison import Divergence, first_divergence
from pipelines.validation.plan import TARGET_ALONE, Pass, Plan, Question, passes_of, questions_of

# They say that an answer was not had, not that it is wrong.
_NO_ANSWER = (ServerUnavailableError, ServerBusyError, RequestTimeoutError, RequestCancelledError)

Answer = Generation | DraftproofError


@dataclass(frozen=True)
class Finding:
    """One answer that differs from the target's, or failed where the target answered.

    Attributes:
        asked: The pass.
        prompt: Where the request's text comes from.
        request: As the target alone was asked.
        expected: The target's answer.
        actual: The other one; None where it failed.
        divergence: Where they part; None where it failed.
        error: How it failed; None where it did not.
    """

    asked: Pass
    prompt: Prompt
    request: CompletionRequest
    expected: Generation
    actual: Generation | None
    divergence: Divergence | None
    error: DraftproofError | None


@dataclass(frozen=True)
class PassResult:
    """What one pass showed.

    Attributes:
        asked: The way of asking.
        prompt_ids: Prompts whose answers were compared, each once.
        num_answers: Answers compared.
        num_tokens: Tokens of the target's answers that were compared.
        num_log_probs: Of these, tokens whose log probabilities were compared, too.
        num_missing: Requests not compared because one of the two answers was not had.
        num_rounds: Target passes of the loop.
        num_drafted: Draft tokens proposed.
        num_accepted: Those accepted.
        other_draft_lengths: What answers said was used instead of the pass's draft length.
        num_cut_off: Other requests that were cut off meanwhile.
        findings: What differs, in the order of the questions.
        seconds: Wall time of the pass, without the target's answers to compare with.
    """

    asked: Pass
    prompt_ids: frozenset[str]
    num_answers: int
    num_tokens: int
    num_log_probs: int
    num_missing: int
    num_rounds: int
    num_drafted: int
    num_accepted: int
    other_draft_lengths: frozenset[str]
    num_cut_off: int
    findings: tuple[Finding, ...]
    seconds: float


@dataclass(frozen=True)
class Progress:
    """How far the proof has come; for a line on the terminal.

    Attributes:
        asked: The pass that runs.
        num_passes: Of the plan.
        num_done: Answers of this pass, or of the target for comparison.
        num_questions: That it asks.
        is_reference: Whether the target is being asked for the answers to compare with.
    """

    asked: Pass
    num_passes: int
    num_done: int
    num_questions: int
    is_reference: bool


def prove(
    plan: Plan,
    clients: Sequence[Asked],
    nonce: str,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    on_pass: Callable[[PassResult], None] = lambda result: None,
) -> tuple[PassResult, ...]:
    """Carry a plan out.

    Args:
        plan: What to compare.
        clients: One more than the greatest load.
        nonce: Text that no earlier run of this server used.
        on_progress: Told each answer, in any thread.
        on_pass: Told each finished pass.
    """
    passes = passes_of(plan)
    reference: dict[CompletionRequest, Answer] = {}
    results = []
    for asked in passes:
        questions = questions_of(plan, asked, nonce)
        done: list[None] = []

        def count(
            _: object, asked: Pass = asked, total: int = len(questions), done: list[None] = done
        ) -> None:
            done.append(None)
            on_progress(Progress(asked, len(passes), len(done), total, is_reference=False))

        given = ask_pass(plan, asked, nonce, clients, count)
        # Afterwards, so that a cold cache is cold, and one at a time, with nothing else running.
        unknown = list(dict.fromkeys(q.request for q in questions if q.request not in reference))
        for number, request in enumerate(unknown, start=1):
            reference[request] = _ask(clients[0], request)
            on_progress(Progress(asked, len(passes), number, len(unknown), is_reference=True))
        expected = [reference[question.request] for question in questions]
        result = compare_pass(asked, questions, expected, given.answers)
        results.append(replace(result, num_cut_off=given.num_cut_off, seconds=given.seconds))
        on_pass(results[-1])
    return tuple(results)


def _ask(client: Asked, request: CompletionRequest) -> Answer:
    try:
        return client.generate(request, TARGET_ALONE)
    except DraftproofError as error:
        return error


def compare_pass(
    asked: Pass,
    questions: Sequence[Question],
    reference: Sequence[Answer],
    answers: Sequence[Answer],
) -> PassResult:
    """Compare the answers of a pass with the target's, in the order of the questions."""
    prompt_ids = set()
    draft_lengths = set()
    num_answers = num_tokens = num_log_probs = num_missing = num_rounds = num_drafted = num_accepted = 0
    findings = []
    for question, expected, actual in zip(questions, reference, answers, strict=True):
        if isinstance(expected, DraftproofError) or isinstance(actual, _NO_ANSWER):
            num_missing += 1
            continue
        num_answers += 1
        prompt_ids.add(question.prompt.prompt_id)
        if isinstance(actual, DraftproofError):
            findings.append(Finding(asked, question.prompt, question.request, expected, None, None, actual))
            continue
        num_tokens += len(expected.output_ids)
        num_log_probs += len(expected.log_probs)
        draft_lengths.add(actual.draft_length)
        num_rounds += actual.num_rounds
        num_drafted += actual.total_draft_tokens
        num_accepted += actual.total_accepted_draft_tokens
        divergence = first_divergence(expected, actual, question.request)
        if divergence is not None:
            findings.append(
                Finding(asked, question.prompt, question.request, expected, actual, divergence, None)
            )
    return PassResult(
        asked=asked,
        prompt_ids=frozenset(prompt_ids),
        num_answers=num_answers,
        num_tokens=num_tokens,
        num_log_probs=num_log_probs,
        num_missing=num_missing,
        num_rounds=num_rounds,
        num_drafted=num_drafted,
        num_accepted=num_accepted,
        other_draft_lengths=frozenset(draft_lengths - {asked.draft_length.used}),
        num_cut_off=0,
        findings=tuple(findings),
        seconds=0.0,
    )
