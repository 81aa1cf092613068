"""The plan of a benchmark: arms, loads, measurements and their order."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipelines.bench.prompt_sets import PromptSet
from pipelines.client import CompletionRequest


@dataclass(frozen=True)
class Arm:
    """A model with its draft length.

    Attributes:
        model: Model, ``generate_target`` or ``generate``.
        num_draft_tokens: Draft tokens per round; None for the target alone, or to let the server choose.
    """

    model: str
    num_draft_tokens: int | None = None

    def __str__(self) -> str:
        if self.model == TARGET_ALONE.model:
            return "target alone"
        return "adaptive" if self.num_draft_tokens is None else f"K={self.num_draft_tokens}"


TARGET_ALONE = Arm("generate_target")
ADAPTIVE = Arm("generate")


def arms_with(draft_lengths: Sequence[int]) -> tuple[Arm, ...]:
    """Return the arms: target alone, each fixed draft length, and adaptive draft length."""
    return (TARGET_ALONE, *(Arm("generate", length) for length in draft_lengths), ADAPTIVE)


LEAST_REQUESTS = 4  # per measurement, so that no single prompt dominates it


def requests_needed(num_at_once: int) -> int:
    """Return the number of requests of one measurement: at least two for each that runs."""
    return max(LEAST_REQUESTS, 2 * num_at_once)


@dataclass(frozen=True)
class Cell:
    """A prompt set under a load, in which arms are compared.

    Attributes:
        prompt_set: The prompts.
        num_at_once: Number of concurrent requests; the next one starts when one is answered.
    """

    prompt_set: PromptSet
    num_at_once: int

    @property
    def first_requests(self) -> tuple[CompletionRequest, ...]:
        """Requests of one measurement."""
        return self.prompt_set.requests[: requests_needed(self.num_at_once)]

    def __str__(self) -> str:
        return f"{self.prompt_set.name}, {self.num_at_once} concurrent"


@dataclass(frozen=True)
class Plan:
    """Plan of a benchmark.

    Attributes:
        prompt_sets: Prompt sets, each with enough requests for every load.
        concurrency: Numbers of concurrent requests.
        draft_lengths: ``num_draft_tokens`` of the arms with fixed draft length.
        max_tokens: Most output tokens per request.
        repetitions: Number of measurements of each arm in each cell.
    """

    prompt_sets: tuple[PromptSet, ...]
    concurrency: tuple[int, ...]
    draft_lengths: tuple[int, ...]
    max_tokens: int
    repetitions: int

    @property
    def arms(self) -> tuple[Arm, ...]:
        """Arms of every cell."""
        return arms_with(self.draft_lengths)

    @property
    def cells(self) -> tuple[Cell, ...]:
        """All cells, ordered by prompt set."""
        return tuple(itertools.starmap(Cell, itertools.product(self.prompt_sets, self.concurrency)))

    @property
    def num_requests(self) -> int:
        """Number of requests of all measurements."""
        return sum(len(cell.first_requests) for cell in self.cells) * self.repetitions * len(self.arms)

    def turns(self) -> Iterator[tuple[int, Arm]]:
        """Yield repetitions and arms of a cell; each repetition starts with a different arm."""
        for repetition in range(self.repetitions):
            first = repetition % len(self.arms)
            for arm in self.arms[first:] + self.arms[:first]:
                yield repetition, arm


def describe(plan: Plan) -> str:
    """Describe the plan."""
    return "\n".join(
        [
            f"prompt sets: {', '.join(each.name for each in plan.prompt_sets)}",
            f"concurrent requests: {', '.join(map(str, plan.concurrency))}",
            f"arms: {', '.join(map(str, plan.arms))}; {plan.repetitions} repetitions, in turn; "
            f"{plan.max_tokens} tokens per answer at most; {plan.num_requests} requests",
        ]
    )
