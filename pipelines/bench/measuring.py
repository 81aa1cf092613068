"""Send the same requests to each arm in turn, so that disturbances of the machine affect all arms alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from pipelines.bench.plan import TARGET_ALONE, Arm, Cell, Plan
from pipelines.client import Client, CompletionRequest, Generation
from pipelines.errors import DraftproofError, ServerBusyError, VerificationError

Ask = Callable[[CompletionRequest, str], Generation]
"""Sends one request to one model and returns its answer; raises DraftproofError."""


def streaming(client: Client) -> Ask:
    """Return a function that asks for streams, so that first tokens are timed."""
    return lambda request, model: client.stream(request, model).result()


@dataclass(frozen=True)
class Measurement:
    """One measurement of one arm in one cell.

    Attributes:
        cell: Prompt set and load.
        arm: Arm that was measured.
        repetition: Number of the repetition, from 0. Arms are compared within a repetition.
        generations: Answers in the order of the requests.
        wall_s: Time from the first request to the last answer.
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


_TOKENS_TO_READ = 4
"""Enough for the draft to read the prompt too: it does so after the first token."""


def warm_up(plan: Plan, ask: Ask) -> list[Measurement]:
    """Run every arm once at the greatest load, so that engines, caches and prompts are warm for all.

    Returns:
        Measurements of the target alone, one per prompt set.

    Raises:
        DraftproofError: A request failed.
    """
    cells = [Cell(prompt_set, max(plan.concurrency)) for prompt_set in plan.prompt_sets]
    # The target last, when its prompts are cached.
    return [
        [run_once(cell, arm, plan.max_tokens, ask) for arm in (*plan.arms[1:], TARGET_ALONE)][-1]
        for cell in cells
    ]


def measure(plan: Plan, ask: Ask) -> Iterator[Measurement]:
    """Run the measurements of a plan one by one, after ``warm_up``.

    Within a repetition the arms take turns, starting with a different one each time.

    Raises:
        DraftproofError: A request failed; figures of the others would flatter the server.
    """
    for cell in plan.cells:
        for arm in plan.arms:  # other cells may have taken the places of these prompts in the caches
            run_once(cell, arm, _TOKENS_TO_READ, ask)
        for repetition, arm in plan.turns():
            yield run_once(cell, arm, plan.max_tokens, ask, repetition)


def run_once(cell: Cell, arm: Arm, max_tokens: int, ask: Ask, repetition: int = -1) -> Measurement:
    """Send the first requests of a prompt set under a load.

    Raises:
        VerificationError: The server's queue was full.
        DraftproofError: Another request failed.
    """

    def answer(request: CompletionRequest) -> Generation:
        asked = replace(request, max_tokens=max_tokens, num_draft_tokens=arm.num_draft_tokens)
        return ask(asked, arm.model)

    pool = ThreadPoolExecutor(cell.num_at_once)
    started_s = time.monotonic()
    try:
        generations = tuple(pool.map(answer, cell.first_requests))
    except DraftproofError as error:
        pool.shutdown(cancel_futures=True)  # what still runs would disturb the next measurement
        if not isinstance(error, ServerBusyError):
            raise
        raise VerificationError(
            f"the server refused a request of {arm} ({cell}), which improves the latency of others: {error}",
            "serve with a larger max_queue_size, or use lower --concurrency",
        ) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # an interrupt waits for no answer
    return Measurement(cell, arm, repetition, generations, time.monotonic() - started_s)


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
