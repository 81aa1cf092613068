"""Asks the same prompts of each arm in turn, so that what the machine does meanwhile falls on all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipelines.client import CompletionRequest, Generation
from pipelines.client.at_once import Job, Workers
from pipelines.errors import DraftproofError
from pipelines.prompts import Prompt

LEAST_REQUESTS = 4  # per measurement: one or two would make it the measurement of a prompt


@dataclass(frozen=True)
class Arm:
    """One way of asking: the target alone, or speculation with a fixed draft length.

    Attributes:
        model: ``generate_target`` or ``generate``.
        num_draft_tokens: None for the target alone.
    """

    model: str
    num_draft_tokens: int | None = None

    def __str__(self) -> str:
        return "target alone" if self.num_draft_tokens is None else f"K={self.num_draft_tokens}"


TARGET_ALONE = Arm("generate_target")


@dataclass(frozen=True)
class Measurement:
    """One arm at one load, once.

    Attributes:
        arm: The way of asking.
        num_at_once: Requests at once.
        repetition: From 0. Arms are compared within a repetition.
        generations: All answers, in the order of the prompts.
        wall_s: From the first request to the last answer.
    """

    arm: Arm
    num_at_once: int
    repetition: int
    generations: tuple[Generation, ...]
    wall_s: float

    @property
    def output_tokens_per_s(self) -> float:
        """Output tokens of all requests together per second of wall time.

        At the end fewer requests than ``num_at_once`` are left: that lowers the figure of every arm.
        """
        return sum(generation.num_output_tokens for generation in self.generations) / self.wall_s


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        prompts: Enough for the highest load.
        concurrency: Numbers of requests at once.
        draft_lengths: ``num_draft_tokens`` of the speculative arms.
        max_tokens: Output tokens per request at most.
        repetitions: How often each arm is measured at each load.
    """

    prompts: tuple[Prompt, ...]
    concurrency: tuple[int, ...]
    draft_lengths: tuple[int, ...]
    max_tokens: int
    repetitions: int

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The target alone first, then speculation by draft length."""
        return (TARGET_ALONE, *(Arm("generate", length) for length in self.draft_lengths))


def num_requests(num_at_once: int) -> int:
    """Requests of one measurement: each worker answers at least two."""
    return max(LEAST_REQUESTS, 2 * num_at_once)


def measure(
    plan: Plan, workers: Workers, on_measurement: Callable[[Measurement], None] = lambda measurement: None
) -> list[Measurement]:
    """Carry a plan out.

    Before the measurements at a load, each arm is run once for nothing: engines, caches and prompts are
    then equally warm for all. Within a repetition the arms follow each other, beginning with another
    one each time.

    Raises:
        DraftproofError: A request failed: figures of the others would flatter the server.
    """
    measurements = []
    for num_at_once in plan.concurrency:
        prompts = plan.prompts[: num_requests(num_at_once)]
        for arm in plan.arms:
            _run(arm, plan, prompts, num_at_once, workers, repetition=-1)
        for repetition in range(plan.repetitions):
            first = repetition % len(plan.arms)
            for arm in plan.arms[first:] + plan.arms[:first]:
                measurement = _run(arm, plan, prompts, num_at_once, workers, repetition)
                measurements.append(measurement)
                on_measurement(measurement)
    return measurements


def _run(
    arm: Arm, plan: Plan, prompts: Sequence[Prompt], num_at_once: int, workers: Workers, repetition: int
) -> Measurement:
    jobs = [
        Job(
            CompletionRequest(prompt.text, max_tokens=plan.max_tokens, num_draft_tokens=arm.num_draft_tokens),
            arm.model,
        )
        for prompt in prompts
    ]
    started_s = time.monotonic()
    answers = workers.run(jobs, num_at_once)
    wall_s = time.monotonic() - started_s
    generations = []
    for answer in answers:
        if isinstance(answer, DraftproofError):
            raise answer
        generations.append(answer)
    return Measurement(arm, num_at_once, repetition, tuple(generations), wall_s)
