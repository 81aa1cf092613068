"""Send the same requests to each arm in turn, so that disturbances of the machine affect all arms alike."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pipelines.bench.plan import (
    TARGET_ALONE,
    Arm,
    Cell,
    ClosedLoop,
    OpenLoop,
    Pace,
    Plan,
    expected_seconds,
    poisson_arrivals,
)
from pipelines.client import Generation
from pipelines.client.workers import Job, Workers
from pipelines.errors import DraftproofError, ServerBusyError, VerificationError
from pipelines.time_left import place


@dataclass(frozen=True)
class Measurement:
    """One measurement of one arm in one cell.

    Attributes:
        cell: Prompt set and load.
        arm: Arm that was measured.
        repetition: Number of the repetition, from 0. Arms are compared within a repetition.
        generations: Answers in the order of the requests. In an open loop their times start at the arrival.
        wall_s: Time from the first request or the start of the arrivals to the last answer.
    """

    cell: Cell
    arm: Arm
    repetition: int
    generations: tuple[Generation, ...]
    wall_s: float

    @property
    def num_output_tokens(self) -> int:
        """Number of output tokens of all answers."""
        return sum(generation.num_output_tokens for generation in self.generations)

    @property
    def output_tokens_per_s(self) -> float:
        """Output tokens of all requests per second of wall time.

        Towards the end fewer than ``num_at_once`` requests run, which lowers the figure of every arm.
        """
        return self.num_output_tokens / self.wall_s

    @property
    def speed(self) -> float:
        """Speed by which arms are compared; greater is better.

        In a closed loop this is output tokens per second. In an open loop the arrivals determine those, so it
        is 1 over the mean end-to-end latency including waiting, in 1/s. 0 without output.
        """
        if isinstance(self.cell.load, ClosedLoop) or not self.num_output_tokens:
            return self.output_tokens_per_s
        return 1 / statistics.fmean(generation.e2e_latency_s for generation in self.generations)


_TOKENS_TO_READ = 4
"""Enough for the draft to read the prompt too: it does so after the first token."""


def warm_up(plan: Plan, workers: Workers) -> tuple[Pace, list[Measurement]]:
    """Run every arm once at the greatest load, so that engines, caches and prompts are warm for all.

    Returns:
        The pace of the target alone and its measurements: one per prompt set at the greatest load, then one
        of the first set with one request at a time.

    Raises:
        DraftproofError: A request failed.
    """
    kept = []
    for prompt_set in plan.prompt_sets:
        cell = Cell(prompt_set, plan.busiest)
        for arm in (*plan.arms[1:], TARGET_ALONE):  # the target last, when its prompts are cached
            last = run_once(cell, arm, plan.max_tokens, workers)
        kept.append(last)
    single = run_once(plan.single, TARGET_ALONE, plan.max_tokens, workers)
    pace = Pace(
        single_s=single.wall_s / len(single.generations),
        capacity_per_s={each.cell.prompt_set.name: len(each.generations) / each.wall_s for each in kept},
        num_at_once=plan.busiest.num_at_once,
    )
    return pace, [*kept, single]


def measure(plan: Plan, pace: Pace, workers: Workers) -> Iterator[Measurement]:
    """Run the measurements of a plan one by one, after ``warm_up``.

    Within a repetition the arms take turns, starting with a different one each time. The arrivals of an open
    loop are the same for all arms of a repetition.

    Raises:
        DraftproofError: A request failed; figures of the others would flatter the server.
    """
    for cell in plan.cells:
        for arm in plan.arms:  # other cells may have taken the places of these prompts in the caches
            run_once(cell, arm, _TOKENS_TO_READ, workers)
        for repetition, arm in plan.turns():
            arrivals_s = None
            if isinstance(cell.load, OpenLoop):
                rate = cell.load.share_of_capacity * pace.capacity_per_s[cell.prompt_set.name]
                arrivals_s = poisson_arrivals(rate, cell.load.num_requests, seed=repetition)
            yield run_once(cell, arm, plan.max_tokens, workers, repetition, arrivals_s)


def run_once(
    cell: Cell,
    arm: Arm,
    max_tokens: int,
    workers: Workers,
    repetition: int = -1,
    arrivals_s: Sequence[float] | None = None,
) -> Measurement:
    """Send the first requests of a prompt set under a load.

    Raises:
        VerificationError: The server's queue was full.
        DraftproofError: Another request failed.
    """
    num_at_once = cell.load.num_at_once if isinstance(cell.load, ClosedLoop) else cell.load.num_requests
    jobs = [
        Job(replace(request, max_tokens=max_tokens, num_draft_tokens=arm.num_draft_tokens), arm.model)
        for request in cell.first_requests
    ]
    started_s = time.monotonic()
    answers = workers.run(jobs, num_at_once, arrivals_s=arrivals_s)
    wall_s = time.monotonic() - started_s
    for error in (answer for answer in answers if isinstance(answer, DraftproofError)):
        if not isinstance(error, ServerBusyError):
            raise error
        raise VerificationError(
            f"the server refused a request of {arm} ({cell}), so nothing was measured",
            values=str(error),
            limit="an answer to every request; refused ones would improve the latency of others",
            remedy="serve with a larger max_queue_size, or use lower --concurrency and --rates",
        ) from error
    generations = tuple(answer for answer in answers if isinstance(answer, Generation))
    return Measurement(cell, arm, repetition, generations, wall_s)


def num_different_answers(measurements: Sequence[Measurement]) -> int:
    """Count answers that differ from the first answer of the target alone to the same request.

    The benchmark is no proof, unlike ``pipelines.validation``, but a speed-up with other answers is
    meaningless.
    """
    expected: dict[tuple[str, int], tuple[int, ...]] = {}
    num_different = 0
    # The target alone comes first; otherwise sorting keeps the order.
    for measurement in sorted(measurements, key=lambda each: each.arm != TARGET_ALONE):
        for index, generation in enumerate(measurement.generations):
            wanted = expected.setdefault((measurement.cell.prompt_set.name, index), generation.output_ids)
            num_different += generation.output_ids != wanted
    return num_different


class MeasurementProgress:
    """Shows the progress of a plan; called with each measurement.

    Args:
        plan: Plan of the benchmark.
        pace: Expected duration of each measurement; the remaining time is scaled by the actual durations.
    """

    def __init__(self, plan: Plan, pace: Pace) -> None:
        self._pace = pace
        self._num_all, self._num_done = plan.num_measurements, 0
        self._expected_left_s = expected_seconds(plan, pace)
        self._expected_s = self._actual_s = 0.0

    def __call__(self, measurement: Measurement) -> None:
        """Print the measurement and the remaining time."""
        expected_s = self._pace.seconds_of(measurement.cell)
        self._expected_s += expected_s
        self._expected_left_s -= expected_s
        self._actual_s += measurement.wall_s
        self._num_done += 1
        left_s = self._expected_left_s * self._actual_s / self._expected_s
        print(
            f"{place(self._num_done, self._num_all, left_s)} {measurement.cell}, "
            f"repetition {measurement.repetition + 1}, {measurement.arm}: "
            f"{measurement.output_tokens_per_s:.1f} tokens/s",
            file=sys.stderr,
            flush=True,
        )
