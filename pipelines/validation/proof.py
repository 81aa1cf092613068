"""Asks the target alone once per prompt, then compares every other way of asking with that.

What it proves: for these prompts, at these draft lengths and loads, tokens, reason and text are the
target's own. What it does not prove: anything about other prompts, engines or machines.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

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

TARGET_ALONE = "generate_target"
SPECULATIVE = "generate"

# They say that an answer was not had, not that it is wrong.
_NO_ANSWER = (ServerUnavailableError, ServerBusyError, RequestTimeoutError, RequestCancelledError)


@dataclass(frozen=True)
class Plan:
    """What is compared.

    Attributes:
        prompts: At least one.
        draft_lengths: ``num_draft_tokens`` to try; 0 runs the loop without a draft.
        concurrency: Numbers of requests at once; the smallest gives the reference.
        max_tokens: Output tokens per answer at most.
        temperatures: 0 is greedy; above 0 every prompt has a seed of its own.
    """

    prompts: tuple[Prompt, ...]
    draft_lengths: tuple[int, ...]
    concurrency: tuple[int, ...]
    max_tokens: int
    temperatures: tuple[float, ...]


@dataclass(frozen=True)
class Pass:
    """One way of asking: a model at a temperature, draft length and load."""

    model: str
    temperature: float
    num_draft_tokens: int | None
    num_at_once: int

    def __str__(self) -> str:
        sampling = f"T={self.temperature:g}" if self.temperature else "greedy"
        length = "" if self.num_draft_tokens is None else f" num_draft_tokens={self.num_draft_tokens}"
        return f"{self.model}{length} {sampling} x{self.num_at_once}"


@dataclass(frozen=True)
class Finding:
    """One answer that differs from the target's, or failed where the target answered."""

    asked: Pass
    prompt: Prompt
    divergence: Divergence | None
    error: DraftproofError | None
    expected: Generation


@dataclass(frozen=True)
class PassResult:
    """What one pass showed.

    Attributes:
        asked: The way of asking.
        num_prompts: Answers compared.
        num_tokens: Tokens of the target's answers that were compared.
        num_missing: Prompts not compared because one of the two answers was not had.
        num_drafted: Draft tokens proposed.
        num_accepted: Those accepted.
        findings: What differs, in the order of the prompts.
        seconds: Wall time.
    """

    asked: Pass
    num_prompts: int
    num_tokens: int
    num_missing: int
    num_drafted: int
    num_accepted: int
    findings: tuple[Finding, ...]
    seconds: float


@dataclass(frozen=True)
class Proof:
    """All passes, and what they amount to."""

    passes: tuple[PassResult, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens compared."""
        return sum(result.num_tokens for result in self.passes)

    @property
    def num_answers(self) -> int:
        """Answers compared."""
        return sum(result.num_prompts for result in self.passes)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What differs, in the order of the passes."""
        return tuple(finding for result in self.passes for finding in result.findings)

    def failures(self) -> list[str]:
        """Why the proof fails; empty if it does not."""
        reasons = [f"{len(self.findings)} answers differ from the target's own"] if self.findings else []
        for result in self.passes:
            if result.num_tokens == 0 and result.num_missing == 0:
                reasons.append(f"{result.asked}: no token was compared")
            length = result.asked.num_draft_tokens
            if length == 0 and result.num_drafted:
                reasons.append(f"{result.asked}: speculation was off, but {result.num_drafted} were drafted")
            if length and result.num_prompts and not result.num_drafted:
                reasons.append(f"{result.asked}: nothing was drafted, so nothing was tested")
        speculated = [result for result in self.passes if result.asked.num_draft_tokens]
        if any(result.num_drafted for result in speculated) and not any(
            result.num_accepted for result in speculated
        ):
            reasons.append("no draft token was ever accepted, so acceptance was not tested")
        if self.num_tokens == 0:
            reasons.append("no token was compared at all")
        return reasons

    @property
    def num_missing(self) -> int:
        """Comparisons that could not be made."""
        return sum(result.num_missing for result in self.passes)

    @property
    def verdict(self) -> str:
        """``pass``, ``fail``, or ``inconclusive`` if all that was compared is equal but some was not."""
        if self.failures():
            return "fail"
        return "inconclusive" if self.num_missing else "pass"


def passes_of(plan: Plan) -> list[Pass]:
    """The passes of a plan in the order they are run; the first of each temperature is the reference."""
    passes = []
    for temperature in plan.temperatures:
        for num_at_once in sorted(plan.concurrency):
            passes.append(Pass(TARGET_ALONE, temperature, None, num_at_once))
        for num_at_once in sorted(plan.concurrency):
            for length in plan.draft_lengths:
                passes.append(Pass(SPECULATIVE, temperature, length, num_at_once))
    return passes


def prove(
    plan: Plan,
    workers: Workers,
    on_answer: Callable[[Pass, int], None] = lambda asked, num_done: None,
    on_pass: Callable[[PassResult], None] = lambda result: None,
) -> Proof:
    """Carry a plan out.

    Args:
        plan: What to compare.
        workers: As many as the highest concurrency.
        on_answer: Told the pass and how many of its prompts are answered.
        on_pass: Told each finished pass.
    """
    results = []
    reference: list[Generation | DraftproofError] = []
    for asked in passes_of(plan):
        started_s = time.monotonic()
        done: list[None] = []

        def count(_: object, asked: Pass = asked, done: list[None] = done) -> None:
            done.append(None)
            on_answer(asked, len(done))

        answers = workers.run(_jobs(plan, asked), asked.num_at_once, count)
        if asked.model == TARGET_ALONE and asked.num_at_once == min(plan.concurrency):
            reference = answers
            continue
        results.append(_compare(plan.prompts, asked, reference, answers, time.monotonic() - started_s))
        on_pass(results[-1])
    return Proof(tuple(results))


def _jobs(plan: Plan, asked: Pass) -> list[Job]:
    base = CompletionRequest(
        "",
        max_tokens=plan.max_tokens,
        temperature=asked.temperature,
        num_draft_tokens=asked.num_draft_tokens,
    )
    return [
        Job(replace(base, prompt=prompt.text, seed=index if asked.temperature else None), asked.model)
        for index, prompt in enumerate(plan.prompts)
    ]


def _compare(
    prompts: Sequence[Prompt],
    asked: Pass,
    reference: Sequence[Generation | DraftproofError],
    answers: Sequence[Generation | DraftproofError],
    seconds: float,
) -> PassResult:
    num_prompts = num_tokens = num_missing = num_drafted = num_accepted = 0
    findings = []
    for prompt, expected, actual in zip(prompts, reference, answers, strict=True):
        if isinstance(expected, DraftproofError) or isinstance(actual, _NO_ANSWER):
            num_missing += 1
            continue
        num_prompts += 1
        if isinstance(actual, DraftproofError):
            findings.append(Finding(asked, prompt, None, actual, expected))
            continue
        num_tokens += len(expected.output_ids)
        num_drafted += actual.total_draft_tokens
        num_accepted += actual.total_accepted_draft_tokens
        divergence = first_divergence(expected, actual)
        if divergence is not None:
            findings.append(Finding(asked, prompt, divergence, None, expected))
    return PassResult(
        asked, num_prompts, num_tokens, num_missing, num_drafted, num_accepted, tuple(findings), seconds
    )
