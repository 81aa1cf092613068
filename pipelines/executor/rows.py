"""Decides how many rows a step computes: as many as pay, while avoiding changes of shape.

A row is a token that must be computed, or a draft token that may become output. The value of a draft token
(its survival) and the cost of a step by rows are known. So the best number of rows maximises tokens - rate *
seconds, where the rate is the server's throughput. This is the rule for the best ratio over many steps
(Dinkelbach 1967, On nonlinear fractional programming).

A call whose shape differs from the previous one costs more, because OpenVINO prepares every layer again. So
the number of rows stays the same until another number would have saved as much as the change costs, as in the
ski-rental problem. Spare rows go to the next most likely draft tokens
(docs/decisions/draft-length.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from pipelines.executor.lane import Work
from pipelines.executor.step import Chunk
from pipelines.speculation.draft_length.step_costs import Kind, StepCosts

Worths = npt.NDArray[np.float64]
NOTHING: Worths = np.empty(0)


class RowBudget:
    """Sizes the steps of one engine.

    Args:
        costs: Step costs of the engine without change of shape.
        change_s: Extra time of a step whose shape changes, in seconds.
        tokens_per_s: Returns the server's current throughput.
    """

    def __init__(self, costs: StepCosts, change_s: float, tokens_per_s: Callable[[], float]) -> None:
        self.costs = costs
        self.sizes = step_sizes(costs.max_rows)
        self._change_s = change_s
        self._tokens_per_s = tokens_per_s
        # Accumulated gain of each size over the current one, since it was last no better.
        self._missed: Worths = np.zeros(len(self.sizes))
        self._last = 0
        self._keeps_shape = False

    def price_of_context(self, context_len: int) -> float:
        """Return what reading a context of this length costs for a further row of its request, in tokens."""
        return self._tokens_per_s() * self.costs.row_context_s(context_len)

    def rows(self, num_needed: int, worths: Worths) -> int:
        """Return the number of rows of a step without prompts.

        Args:
            num_needed: Rows that must be computed.
            worths: float64 [n], descending: expected output tokens of each further row.

        Returns:
            At least ``num_needed``. May exceed all available rows if the shape is worth keeping.
        """
        if num_needed > self.sizes[-1]:
            self._keeps_shape = False
            return num_needed
        rate = self._tokens_per_s()
        room = self.sizes - num_needed
        values = -rate * self.costs.seconds(self.sizes)
        if len(worths):
            values += _sums(worths)[np.clip(room, 0, len(worths))]
        values[room < 0] = -np.inf
        if room[self._last] < 0:
            self._change_to(int(np.argmax(values)))
        else:
            self._missed = np.maximum(self._missed + values - values[self._last], 0.0)
            best = int(np.argmax(self._missed))
            if self._missed[best] > (rate * self._change_s if self._keeps_shape else 0.0):
                self._change_to(best)
        self._keeps_shape = True
        return int(self.sizes[self._last])

    def rows_beside_prompts(self, num_needed: int, worths: Worths) -> int:
        """Return the tokens of a step with prompts, whose shape changes every time; arguments as ``rows``."""
        self._keeps_shape = False
        counts = np.arange(num_needed, num_needed + len(worths) + 1)
        values = _sums(worths) - self._tokens_per_s() * self.costs.seconds(counts)
        return int(counts[np.argmax(values)])

    def _change_to(self, index: int) -> None:
        self._last = index
        self._missed[:] = 0.0


def step_sizes(max_rows: int) -> npt.NDArray[np.int64]:
    """Return the allowed numbers of rows: few, because an engine prepares each at its first use."""
    sizes = (*range(1, 16), *range(16, 64, 2), *range(64, max_rows, 8), max_rows)
    return np.array(sorted({min(size, max_rows) for size in sizes}))


def _sums(worths: Worths) -> Worths:
    """Return the worth of the first 0, 1, ... rows; rows with a negative worth count as 0."""
    return np.concatenate((np.zeros(1), np.cumsum(np.maximum(worths, 0.0))))


def fit_to_budget(work: SequenceOf[Work], budget: RowBudget) -> tuple[list[Work], int]:
    """Drop the draft tokens that are not worth their row.

    Only tokens with a ``draft_survival`` can be dropped, and dropping them never changes an output.

    Args:
        work: The planned step.
        budget: Row budget of the engine.

    Returns:
        The step, and the number of rows to compute if it has no prompts; dummy rows fill it up.
    """
    is_rows_only = all(item.chunk.as_rows for item in work)
    num_planned = sum(len(item.chunk.token_ids) for item in work)
    choose = budget.rows if is_rows_only else budget.rows_beside_prompts
    if all(item.sequence.draft_survival is None for item in work):
        return list(work), choose(num_planned, NOTHING)
    worths = [_worths(item, budget) for item in work]
    flat = np.concatenate(worths)
    order = np.argsort(-flat, kind="stable")
    num_needed = num_planned - len(flat)
    num_rows = choose(num_needed, flat[order])
    owners = np.repeat(np.arange(len(work)), [len(part) for part in worths])
    # Worths decrease within a request and the sort is stable, so a prefix of each draft is kept.
    kept = order[: num_rows - num_needed]
    counts = np.bincount(owners[kept[flat[kept] > 0]], minlength=len(work)).tolist()
    fitted = [_keep(*part) for part in zip(work, worths, counts, strict=True)]
    return fitted, num_rows


def _worths(item: Work, budget: RowBudget) -> Worths:
    """Return the expected output of each draft token minus the cost of its context, float64 [n]."""
    survival = item.sequence.draft_survival
    if survival is None or not item.chunk.num_logits:
        return NOTHING
    return survival - budget.price_of_context(item.sequence.num_tokens)


def _keep(item: Work, worths: Worths, count: int) -> Work:
    num_left_out = len(worths) - count
    if not num_left_out:
        return item
    chunk = item.chunk
    item.sequence.leave_out(num_left_out)
    kept = chunk.first(len(chunk.token_ids) - num_left_out, chunk.num_logits - num_left_out)
    return replace(item, chunk=kept)


@dataclass(frozen=True)
class RowSteps:
    """Consecutive steps of the same rows.

    Attributes:
        work: What the last of the steps computed.
        num_rows: Rows of each, with dummy rows.
        count: Number of steps.
        engine_s: Time of all of them inside the engine.
        num_adapted: ``SpeculationOverhead.num_adapted`` when they were computed.
    """

    work: SequenceOf[Work]
    num_rows: int
    count: int
    engine_s: float
    num_adapted: int

    def teach(self, costs: StepCosts, seconds: float, *, is_first: bool) -> None:
        """Update the costs.

        Args:
            costs: Those of the engine.
            seconds: Time of the steps including the work that followed them.
            is_first: Whether they were the first ones after a step of another executor.
        """
        chunks = [item.chunk for item in self.work]
        positions = sum(costs.positions(len(each.token_ids), each.start) for each in chunks)
        if is_first:
            costs.observe_first(self.num_rows, positions, seconds / self.count)
            return
        if bool(costs.overhead.num_adapted) != bool(self.num_adapted):
            return  # the work that followed was of another kind: the next round speculates, or does not
        kind, num_speculating = self._speculation()
        if num_speculating in (0, len(chunks)):
            outside_s = max(seconds - self.engine_s, 0.0) / self.count
            costs.overhead.observe(len(chunks), outside_s, kind)
        extra_s = costs.overhead.extra_s(num_speculating, kind) * self.count
        seconds = max(seconds - extra_s, self.engine_s)
        costs.observe(self.num_rows, positions, seconds / self.count, num_steps=self.count)

    def _speculation(self) -> tuple[Kind, int]:
        """Return how requests of the step speculate, and how many of them."""
        if self.num_adapted:  # those that drafted in vain speculate as well
            return "adapted", min(self.num_adapted, len(self.work))
        num_verifying = sum(item.sequence.is_verification for item in self.work)
        return "fixed" if num_verifying else "alone", num_verifying


def next_rows(work: SequenceOf[Work], block_size: int) -> list[Work] | None:
    """Return the step that computes the next position of each request of a step that has been computed.

    Planning such a step, laying out its inputs and learning from it takes as long as a small draft computes.

    Returns:
        None if the next step has to be planned: a request has ended, its deadline has passed, it computed
        more than one row or has not exactly one to compute now, or its next position begins a block.
    """
    now_s = time.monotonic()
    if not all(_continues(item, block_size, now_s) for item in work):
        return None
    return [Work(item.lane, item.sequence, _next_row(item)) for item in work]


def _continues(item: Work, block_size: int, now_s: float) -> bool:
    sequence, chunk = item.sequence, item.chunk
    position = chunk.start + 1
    deadline_s = sequence.request.deadline_s
    return (
        sequence.is_proposing
        and (chunk.as_rows, len(chunk.token_ids), chunk.num_logits) == (True, 1, 1)
        and (sequence.num_computed, sequence.num_tokens) == (position, position + 1)
        and position % block_size != 0
        and (deadline_s is None or now_s <= deadline_s)
    )


def _next_row(item: Work) -> Chunk:
    position = item.chunk.start + 1
    token_ids = item.sequence.tokens[position : position + 1]
    # Blocks that the cache has replaced by those of a twin keep their contents until the next plan.
    return Chunk(token_ids, position, item.chunk.blocks, as_rows=True, num_logits=1)
