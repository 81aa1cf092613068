"""Compare every kind of request with the target alone, which answers one request at a time.

The proof covers these prompts, parameters, draft lengths and loads. It says nothing about other prompts,
engines or machines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pipelines.client import CompletionRequest, Generation
from pipelines.client.comparison import NO_ANSWER, Divergence, first_divergence
from pipelines.client.connection import TARGET_ALONE
from pipelines.command_line.prompts import Prompt
from pipelines.errors import DraftproofError
from pipelines.validation.exact.asking import ClientCalls, ask_pass
from pipelines.validation.exact.plan import Pass, ProofPlan, Question, passes_of, questions_of
from pipelines.validation.stopping import StoppedError

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
class PassResult:
    """Result of one pass.

    Attributes:
        asked: Pass that was run.
        prompt_ids: Prompts whose answers were compared.
        num_answers: Number of answers that were compared.
        num_tokens: Number of tokens of the target's answers that were compared.
        num_log_probs: Number of these whose log probabilities were compared too.
        num_asked_for_prompt: Number of answers whose requests asked for log probabilities of the prompt.
        num_prompt_log_probs: Number of prompt tokens whose log probabilities were compared.
        missing: Errors of the requests without one of the two answers.
        num_rounds: Number of target passes of the loop.
        num_drafted: Number of proposed draft tokens.
        num_accepted: Number of accepted draft tokens.
        other_draft_lengths: Draft lengths that answers reported instead of the pass's.
        num_cut_off: Number of other requests that were cancelled meanwhile.
        findings: Answers that differ, in the order of the questions.
        seconds: Wall time of the pass, without the answers of the target alone.
    """

    asked: Pass
    prompt_ids: frozenset[str]
    num_answers: int
    num_tokens: int
    num_log_probs: int
    num_asked_for_prompt: int
    num_prompt_log_probs: int
    missing: tuple[DraftproofError, ...]
    num_rounds: int
    num_drafted: int
    num_accepted: int
    other_draft_lengths: frozenset[str]
    num_cut_off: int
    findings: tuple[Finding, ...]
    seconds: float

    @property
    def num_missing(self) -> int:
        """Number of requests without one of the two answers."""
        return len(self.missing)

    @property
    def was_stopped(self) -> bool:
        """Whether the proof was stopped during the pass."""
        return any(isinstance(error, StoppedError) for error in self.missing)


@dataclass(frozen=True)
class PassProgress:
    """Progress of the proof, for a line on the terminal.

    Attributes:
        asked: Current pass.
        num_done: Number of answers of all passes and of the target alone so far.
        num_answers: Number of answers in all.
        is_reference: Whether the latest answer is one of the target alone.
    """

    asked: Pass
    num_done: int
    num_answers: int
    is_reference: bool


def prove(
    plan: ProofPlan,
    clients: Sequence[ClientCalls],
    nonce: str,
    on_progress: Callable[[PassProgress], None] = lambda progress: None,
    on_pass: Callable[[PassResult], None] = lambda result: None,
) -> tuple[PassResult, ...]:
    """Run all passes of a plan, or those up to the one in which it is stopped.

    Args:
        plan: Plan of the proof.
        clients: Clients, one more than the greatest load.
        nonce: Text that no earlier run on this server used.
        on_progress: Called after each answer, in any thread.
        on_pass: Called after each pass.
    """
    questions_by_pass = {asked: questions_of(plan, asked, nonce) for asked in passes_of(plan)}
    num_answers = sum(map(len, questions_by_pass.values())) + len(
        {question.request for questions in questions_by_pass.values() for question in questions}
    )
    done: list[None] = []

    def count(asked: Pass, is_reference: bool, _: object) -> None:
        done.append(None)
        on_progress(PassProgress(asked, len(done), num_answers, is_reference))

    reference: dict[CompletionRequest, Outcome] = {}
    results = []
    for asked, questions in questions_by_pass.items():
        given = ask_pass(plan, asked, nonce, clients, partial(count, asked, False))
        # The target alone answers after the pass, so that a cold cache is cold, and one request at a time.
        for request in dict.fromkeys(q.request for q in questions if q.request not in reference):
            reference[request] = _ask(clients[0], request)
            count(asked, True, reference[request])
        expected = [reference[question.request] for question in questions]
        result = compare_pass(asked, questions, expected, given.answers)
        results.append(replace(result, num_cut_off=given.num_cut_off, seconds=given.seconds))
        on_pass(results[-1])
        if results[-1].was_stopped:
            break
    return tuple(results)


def _ask(client: ClientCalls, request: CompletionRequest) -> Outcome:
    try:
        return client.generate(request, TARGET_ALONE)
    except DraftproofError as error:
        return error


def compare_pass(
    asked: Pass,
    questions: Sequence[Question],
    reference: Sequence[Outcome],
    answers: Sequence[Outcome],
) -> PassResult:
    """Compare the answers of a pass with those of the target alone, in the order of the questions."""
    prompt_ids = set()
    draft_lengths = set()
    num_answers = num_tokens = num_log_probs = num_rounds = num_drafted = num_accepted = 0
    num_asked_for_prompt = num_prompt_log_probs = 0
    findings = []
    missing: list[DraftproofError] = []
    for question, expected, actual in zip(questions, reference, answers, strict=True):
        if isinstance(expected, DraftproofError):
            missing.append(expected)
            continue
        if isinstance(actual, NO_ANSWER):
            missing.append(actual)
            continue
        num_answers += 1
        prompt_ids.add(question.prompt.prompt_id)
        if isinstance(actual, DraftproofError):
            findings.append(Finding(asked, question.prompt, question.request, expected, None, None, actual))
            continue
        num_tokens += len(expected.output_ids)
        num_log_probs += len(expected.log_probs)
        num_asked_for_prompt += question.request.return_prompt_log_probs
        num_prompt_log_probs += len(expected.prompt_log_probs)
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
        num_asked_for_prompt=num_asked_for_prompt,
        num_prompt_log_probs=num_prompt_log_probs,
        missing=tuple(missing),
        num_rounds=num_rounds,
        num_drafted=num_drafted,
        num_accepted=num_accepted,
        other_draft_lengths=frozenset(draft_lengths - {asked.draft_length.used}),
        num_cut_off=0,
        findings=tuple(findings),
        seconds=0.0,
    )
