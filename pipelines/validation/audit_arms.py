"""The answers that an audit compares, and where each parts from the target's own for the first time.

Only the first place counts: after it the two answers continue different texts. The target alone is asked
one request at a time (the reference), then many at once (A/A): what parts there is the noise of kernels
that depend on the batch. The candidate meets the same load.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipelines.client import CompletionRequest, Generation
from pipelines.client.at_once import Job, Workers
from pipelines.errors import (
    DraftproofError,
    RequestCancelledError,
    RequestTimeoutError,
    ServerBusyError,
    ServerUnavailableError,
)
from pipelines.prompts import Prompt
from pipelines.validation.comparison import Divergence, first_divergence
from pipelines.validation.replay import Margin

# They say that an answer was not had, not that it is wrong.
_NO_ANSWER = (ServerUnavailableError, ServerBusyError, RequestTimeoutError, RequestCancelledError)

MarginOf = Callable[[str, Generation, Generation], Margin]
"""(prompt, the target's answer, the other) -> the margin where they part."""


@dataclass(frozen=True)
class AuditPlan:
    """What is asked.

    Attributes:
        prompts: At least one.
        max_tokens: Output tokens per answer at most.
        control: Model of the target alone.
        candidate: Model of draft and target.
        draft_lengths: One arm for each.
        num_at_once: Requests at once in every arm but the reference.
    """

    prompts: tuple[Prompt, ...]
    max_tokens: int
    control: str
    candidate: str
    draft_lengths: tuple[int, ...]
    num_at_once: int


@dataclass(frozen=True)
class Parting:
    """The first difference between two answers to one prompt.

    Attributes:
        prompt_id: The prompt.
        place: Such as "token 12" or "character 48".
        expected: What the target alone gives from there on, shortened.
        actual: What the other answer gives.
        margin: How sure the target was; None where that is no question of tokens, as after an error.
    """

    prompt_id: str
    place: str
    expected: str
    actual: str
    margin: Margin | None


@dataclass(frozen=True)
class Arm:
    """One way of asking, compared with the reference.

    Attributes:
        name: Names it in the report.
        partings: For each prompt its first difference, or None.
        missing: Indices of prompts that could not be compared.
        num_drafted: Draft tokens proposed; None if the server does not tell, or has no draft here.
    """

    name: str
    partings: tuple[Parting | None, ...]
    missing: frozenset[int]
    num_drafted: int | None = None


@dataclass(frozen=True)
class Audit:
    """All arms.

    Attributes:
        noise: The target alone again, at the candidates' load.
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
    """Ask for all answers and look every first difference up.

    Args:
        plan: What to ask.
        workers: At least ``num_at_once``.
        margin_of: Called in this thread.
        tells_drafting: Whether the candidate's counts of draft tokens mean anything.
        on_answer: Told the arm and how many of its prompts are answered.
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
        return _compare(name, plan.prompts, reference, answers, margin_of)

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
            arm = Arm(arm.name, arm.partings, arm.missing, drafted)
        candidates.append(arm)
    return Audit(noise, tuple(candidates))


def _compare(
    name: str,
    prompts: Sequence[Prompt],
    reference: Sequence[Generation | DraftproofError],
    answers: Sequence[Generation | DraftproofError],
    margin_of: MarginOf,
) -> Arm:
    partings: list[Parting | None] = []
    missing = set()
    for index, (prompt, expected, actual) in enumerate(zip(prompts, reference, answers, strict=True)):
        parting = None
        if isinstance(expected, DraftproofError) or isinstance(actual, _NO_ANSWER):
            missing.add(index)
        elif isinstance(actual, DraftproofError):
            parting = Parting(prompt.prompt_id, "-", "an answer", f"error: {actual}", None)
        elif (divergence := first_divergence(expected, actual)) is not None:
            parting = _parting(prompt, expected, actual, divergence, margin_of)
        partings.append(parting)
    return Arm(name, tuple(partings), frozenset(missing))


def _parting(
    prompt: Prompt, expected: Generation, actual: Generation, divergence: Divergence, margin_of: MarginOf
) -> Parting:
    has_ids = bool(expected.output_ids or actual.output_ids)
    if divergence.kind in ("token", "length") and has_ids:
        place = f"token {divergence.position}"
        sides = _id_or_end(divergence.expected_id), _id_or_end(divergence.actual_id)
    elif divergence.kind == "text" and not has_ids:
        start = _common_length(expected.text, actual.text)
        place = f"character {start}"
        sides = _excerpt(expected.text, start), _excerpt(actual.text, start)
    else:
        # Equal tokens with another text or end: no rounding of the target's does that.
        return Parting(prompt.prompt_id, divergence.kind, divergence.expected, divergence.actual, None)
    return Parting(prompt.prompt_id, place, *sides, margin=margin_of(prompt.text, expected, actual))


def _id_or_end(token_id: int | None) -> str:
    return "<end>" if token_id is None else str(token_id)


def _excerpt(text: str, start: int) -> str:
    return repr(text[max(0, start - 12) : start + 24])


def _common_length(text: str, other: str) -> int:
    length = 0
    while length < min(len(text), len(other)) and text[length] == other[length]:
        length += 1
    return length
