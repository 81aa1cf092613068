"""The plan of a benchmark: arms, loads, measurements, their order and their expected duration."""

from __future__ import annotations

import itertools
import math
import random
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
NUM_ARRIVALS = 16  # per open-loop measurement


@dataclass(frozen=True)
class ClosedLoop:
    """A fixed number of concurrent requests; the next one starts when one is answered.

    Attributes:
        num_at_once: Number of concurrent requests.
    """

    num_at_once: int

    @property
    def num_requests(self) -> int:
        """Number of requests of one measurement, at least two per worker."""
        return max(LEAST_REQUESTS, 2 * self.num_at_once)

    def __str__(self) -> str:
        return f"{self.num_at_once} concurrent"


@dataclass(frozen=True)
class OpenLoop:
    """Requests that arrive at random times, whether or not the server keeps up.

    Attributes:
        share_of_capacity: Mean arrival rate as a share of the requests per second that the target alone
            answers at the greatest closed load.
        num_requests: Number of requests of one measurement.
    """

    share_of_capacity: float
    num_requests: int = NUM_ARRIVALS

    def __str__(self) -> str:
        return f"arrivals at {self.share_of_capacity:g} of capacity"


Load = ClosedLoop | OpenLoop


def poisson_arrivals(rate_per_s: float, count: int, seed: int) -> tuple[float, ...]:
    """Draw arrival times of a Poisson process, whose gaps are independent and exponential.

    Args:
        rate_per_s: Mean arrivals per second.
        count: Number of arrivals.
        seed: The same seed gives the same times.

    Returns:
        Seconds from the start, increasing.
    """
    drawn = random.Random(seed)
    return tuple(itertools.accumulate(drawn.expovariate(rate_per_s) for _ in range(count)))


@dataclass(frozen=True)
class Cell:
    """A prompt set under a load, in which arms are compared."""

    prompt_set: PromptSet
    load: Load

    @property
    def first_requests(self) -> tuple[CompletionRequest, ...]:
        """Requests of one measurement."""
        return self.prompt_set.requests[: self.load.num_requests]

    def __str__(self) -> str:
        return f"{self.prompt_set.name}, {self.load}"


@dataclass(frozen=True)
class Plan:
    """Plan of a benchmark.

    Attributes:
        prompt_sets: Prompt sets, each with enough requests for every load.
        concurrency: Numbers of concurrent requests of closed loops.
        shares_of_capacity: Arrival rates of open loops.
        draft_lengths: ``num_draft_tokens`` of the arms with fixed draft length.
        max_tokens: Most output tokens per request.
        repetitions: Number of measurements of each arm in each cell.
        num_arrivals: Number of requests of each open-loop measurement.
    """

    prompt_sets: tuple[PromptSet, ...]
    concurrency: tuple[int, ...]
    shares_of_capacity: tuple[float, ...]
    draft_lengths: tuple[int, ...]
    max_tokens: int
    repetitions: int
    num_arrivals: int = NUM_ARRIVALS

    @property
    def arms(self) -> tuple[Arm, ...]:
        """Arms of every cell."""
        return arms_with(self.draft_lengths)

    @property
    def loads(self) -> tuple[Load, ...]:
        """Closed loops, followed by open loops."""
        return (
            *(ClosedLoop(num_at_once) for num_at_once in self.concurrency),
            *(OpenLoop(share, self.num_arrivals) for share in self.shares_of_capacity),
        )

    @property
    def busiest(self) -> ClosedLoop:
        """Greatest closed load, at which capacity is measured."""
        return ClosedLoop(max(self.concurrency))

    @property
    def single(self) -> Cell:
        """Cell with one request at a time of the first prompt set, for an idle server."""
        return Cell(self.prompt_sets[0], ClosedLoop(1))

    @property
    def cells(self) -> tuple[Cell, ...]:
        """All cells, ordered by prompt set."""
        return tuple(Cell(*pair) for pair in itertools.product(self.prompt_sets, self.loads))

    @property
    def num_measurements(self) -> int:
        """Number of measurements of all cells."""
        return len(self.cells) * self.repetitions * len(self.arms)

    def turns(self) -> Iterator[tuple[int, Arm]]:
        """Yield repetitions and arms of a cell; each repetition starts with a different arm."""
        for repetition in range(self.repetitions):
            first = repetition % len(self.arms)
            for arm in self.arms[first:] + self.arms[:first]:
                yield repetition, arm


@dataclass(frozen=True)
class Pace:
    """Pace of the target alone, measured before the plan runs.

    Attributes:
        single_s: Seconds per request with one request at a time.
        capacity_per_s: Prompt set -> requests per second with ``num_at_once`` concurrent requests.
        num_at_once: Number of concurrent requests of ``Plan.busiest``.
    """

    single_s: float
    capacity_per_s: dict[str, float]
    num_at_once: int

    def seconds_of(self, cell: Cell) -> float:
        """Estimate the seconds of one measurement of the target alone."""
        capacity = self.capacity_per_s[cell.prompt_set.name]
        load = cell.load
        if isinstance(load, OpenLoop):
            rate = min(load.share_of_capacity, 1.0) * capacity
            return load.num_requests / rate + self.num_at_once / capacity / 2  # of the last request
        # Interpolate between one request and the greatest load by a power law.
        span = math.log(self.num_at_once) if self.num_at_once > 1 else 1.0
        exponent = math.log(max(capacity * self.single_s, 1.0)) / span
        speed_up: float = load.num_at_once**exponent
        return load.num_requests * self.single_s / speed_up


def expected_seconds(plan: Plan, pace: Pace) -> float:
    """Estimate the seconds of all cells if every arm is as fast as the target alone."""
    return sum(pace.seconds_of(cell) for cell in plan.cells) * plan.repetitions * len(plan.arms)


def describe(plan: Plan, pace: Pace) -> str:
    """Describe the plan with its expected duration."""
    minutes = expected_seconds(plan, pace) / 60
    capacity = ", ".join(f"{name} {rate:.2f}" for name, rate in pace.capacity_per_s.items())
    return "\n".join(
        [
            f"prompt sets: {', '.join(each.name for each in plan.prompt_sets)}",
            f"loads: {'; '.join(map(str, plan.loads))}",
            f"arms: {', '.join(map(str, plan.arms))}; {plan.repetitions} repetitions, in turn; "
            f"{plan.max_tokens} tokens per answer at most",
            f"{TARGET_ALONE} at {plan.busiest}, requests/s: {capacity}",
            f"{plan.num_measurements} measurements, about {minutes:.0f} minutes if no arm is faster than "
            f"{TARGET_ALONE}",
        ]
    )
