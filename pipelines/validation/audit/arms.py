"""Request the answers that an audit compares, and find the first difference of each from the target's own.

Only the first difference counts, because after it the answers continue different texts. The target alone
answers one request at a time (the reference), then concurrent requests (A/A), whose differences are the noise
of kernels that depend on the batch. The candidate has the same load.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipelines.client import CompletionRequest, Generation
from pipelines.client.comparison import NO_ANSWER, Divergence, first_divergence
from pipelines.client.workers import Job, Workers
from pipelines.command_line.prompts import Prompt
from pipelines.errors import DraftproofError


@dataclass(frozen=True)
class Margin:
    """Margin between the two tokens at a divergence.

    Attributes:
        log_prob_difference: Natural log probability of the target's token less that of the other, given the
            common start; None if unknown. Of a token that is none of the alternatives, the least that it can
            be.
        why_unknown: Why it is unknown; "" if it is known.
    """

    log_prob_difference: float | None
    why_unknown: str = ""


MarginOf = Callable[[Prompt, Generation, Generation], Margin]
"""(prompt, answer of the target, other answer) -> margin at their first difference."""


@dataclass(frozen=True)
class AuditPlan:
    """Requests of an audit.

    Attributes:
        prompts: Prompts, at least one.
        max_tokens: Most output tokens per answer.
        control: Model of the target alone.
        candidate: Model of draft and target.
        draft_lengths: Draft lengths, with one arm each.
        num_at_once: Number of concurrent requests in every arm except the reference.
    """

    prompts: tuple[Prompt, ...]
    max_tokens: int
    control: str
    candidate: str
    draft_lengths: tuple[int, ...]
    num_at_once: int


@dataclass(frozen=True)
class Difference:
    """The first difference between two answers to one prompt.

    Attributes:
        prompt_id: Name of the prompt.
        place: Position, such as "token 12" or "character 48".
        expected: Continuation of the target alone, shortened.
        actual: Continuation of the other answer, shortened.
        margin: Margin of the target; None if the difference is not one of tokens, as after an error.
    """

    prompt_id: str
    place: str
    expected: str
    actual: str
    margin: Margin | None


@dataclass(frozen=True)
class Arm:
    """Answers of one arm compared with the reference.

    Attributes:
        name: Name in the report.
        differences: First difference of each prompt, or None.
        missing: Indices of prompts that could not be compared.
        num_drafted: Number of proposed draft tokens; None if the server returns no counts or has no draft.
    """

    name: str
    differences: tuple[Difference | None, ...]
    missing: frozenset[int]
    num_drafted: int | None = None


@dataclass(frozen=True)
class Audit:
    """All arms of an audit.

    Attributes:
        noise: The target alone under the load of the candidates.
        candidates: One arm for each draft length.
    """

    noise: Arm
    candidates: tuple[Arm, ...]


def ask_all(
    plan: AuditPlan,
    workers: Workers,
    margin_of: MarginOf,
    tells_drafting: Callable[[], bool] = lambda: True,
    on_answer: Callable[[str, int], None] = lambda name, num_done: None,
) -> Audit:
    """Request all answers and look up the margin of every first difference.

    Args:
        plan: Requests to make.
        workers: Workers, at least ``num_at_once``.
        margin_of: Looks up a margin; called in this thread.
        tells_drafting: Returns whether the candidate returned counts of draft tokens.
        on_answer: Called with the name of an arm and its number of answers so far.
    """

    def ask(
        name: str, model: str, length: int | None, num_at_once: int
    ) -> list[Generation | DraftproofError]:
        done: list[None] = []

        def count(_: object) -> None:
            done.append(None)
            on_answer(name, len(done))

        jobs = [
            Job(CompletionRequest(prompt.text, plan.max_tokens, num_draft_tokens=length), model)
            for prompt in plan.prompts
        ]
        return workers.run(jobs, num_at_once, count)

    def compare(name: str, answers: Sequence[Generation | DraftproofError]) -> Arm:
        return compare_arm(name, plan.prompts, reference, answers, margin_of)

    reference = ask("target alone, one at a time", plan.control, None, 1)
    load = f"x{plan.num_at_once}"
    noise = compare(f"target alone {load}", ask(f"target alone {load}", plan.control, None, plan.num_at_once))
    candidates = []
    for length in plan.draft_lengths:
        name = f"{plan.candidate} num_draft_tokens={length} {load}"
        answers = ask(name, plan.candidate, length, plan.num_at_once)
        arm = compare(name, answers)
        if tells_drafting() and length:
            drafted = sum(answer.total_draft_tokens for answer in answers if isinstance(answer, Generation))
            arm = Arm(arm.name, arm.differences, arm.missing, drafted)
        candidates.append(arm)
    return Audit(noise, tuple(candidates))


def compare_arm(
    name: str,
    prompts: Sequence[Prompt],
    reference: Sequence[Generation | DraftproofError],
    answers: Sequence[Generation | DraftproofError],
    margin_of: MarginOf,
) -> Arm:
    """Find the first difference of each answer of an arm from the reference, and its margin.

    Args:
        name: Name of the arm.
        prompts: Prompts of the answers.
        reference: Answer of the target alone to each prompt, or why there is none.
        answers: Answer of the arm to each prompt, likewise.
        margin_of: Looks up a margin; called in this thread.
    """
    differences: list[Difference | None] = []
    missing = set()
    for index, (prompt, expected, actual) in enumerate(zip(prompts, reference, answers, strict=True)):
        difference = None
        if isinstance(expected, DraftproofError) or isinstance(actual, NO_ANSWER):
            missing.add(index)
        elif isinstance(actual, DraftproofError):
            difference = Difference(prompt.prompt_id, "-", "an answer", f"error: {actual}", None)
        elif (divergence := first_divergence(expected, actual)) is not None:
            difference = _difference(prompt, expected, actual, divergence, margin_of)
        differences.append(difference)
    return Arm(name, tuple(differences), frozenset(missing))


def _difference(
    prompt: Prompt, expected: Generation, actual: Generation, divergence: Divergence, margin_of: MarginOf
) -> Difference:
    has_ids = bool(expected.output_ids or actual.output_ids)
    if divergence.kind in ("token", "length") and has_ids:
        place = f"token {divergence.position}"
        sides = _id_or_end(divergence.expected_id), _id_or_end(divergence.actual_id)
    elif divergence.kind == "text" and not has_ids:
        start = _common_length(expected.text, actual.text)
        place = f"character {start}"
        sides = _excerpt(expected.text, start), _excerpt(actual.text, start)
    else:
        # Equal tokens with different text or end cannot come from rounding.
        return Difference(prompt.prompt_id, divergence.kind, divergence.expected, divergence.actual, None)
    return Difference(prompt.prompt_id, place, *sides, margin=margin_of(prompt, expected, actual))


def _id_or_end(token_id: int | None) -> str:
    return "<end>" if token_id is None else str(token_id)


def _excerpt(text: str, start: int) -> str:
    return repr(text[max(0, start - 12) : start + 24])


def _common_length(text: str, other: str) -> int:
    length = 0
    while length < min(len(text), len(other)) and text[length] == other[length]:
        length += 1
    return length
