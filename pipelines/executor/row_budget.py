"""How many rows a step computes: as many as pay, and for long the same number.

A row is a token that must be computed, or a draft token that may become output. What a draft token is
worth is known (its survival), and so is what a step costs by its rows, so the best number of rows is the
one that maximises tokens - rate * seconds, where the rate is what the server makes of its time: the rule
for the best ratio of a long run of steps (Dinkelbach 1967, On nonlinear fractional programming).

An engine call of another shape than the one before costs more: OpenVINO prepares every layer anew. The
number therefore stays until another has been missed for as much as the change costs, as with skis, rented
until the rent has come to their price; rows that nobody needs are given to the next likely draft tokens
(docs/decisions/0016-rows-of-a-step.md).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pipelines.speculation.step_costs import StepCosts

Worths = npt.NDArray[np.float64]
NOTHING: Worths = np.empty(0)


class RowBudget:
    """Sizes the steps of one engine.

    Args:
        costs: Of the engine's steps, same shape as before.
        change_s: What a change of shape adds to a step, in seconds.
        tokens_per_s: What a second is worth now.
    """

    def __init__(self, costs: StepCosts, change_s: float, tokens_per_s: Callable[[], float]) -> None:
        self.costs = costs
        self.sizes = step_sizes(costs.max_rows)
        self._change_s = change_s
        self._tokens_per_s = tokens_per_s
        # What each size would have gained over the present one, since it last was no better.
        self._missed: Worths = np.zeros(len(self.sizes))
        self._last = 0
        self._keeps_shape = False

    def price_of_context(self, context_len: int) -> float:
        """What a row costs for the context that it reads, in tokens."""
        return self._tokens_per_s() * self.costs.seconds_per_position * context_len

    def rows(self, num_needed: int, worths: Worths) -> int:
        """Rows of a step that has nothing but rows.

        Args:
            num_needed: Rows that must be computed.
            worths: float64 [n], descending: tokens that each further row is expected to give.

        Returns:
            At least ``num_needed``; more than all that is wanted if the shape is worth keeping.
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
        """Tokens of a step that also reads prompts and has another shape every time; arguments as above."""
        self._keeps_shape = False
        counts = np.arange(num_needed, num_needed + len(worths) + 1)
        values = _sums(worths) - self._tokens_per_s() * self.costs.seconds(counts)
        return int(counts[np.argmax(values)])

    def _change_to(self, index: int) -> None:
        self._last = index
        self._missed[:] = 0.0


def step_sizes(max_rows: int) -> npt.NDArray[np.int64]:
    """Numbers of rows that steps have: few, since an engine prepares each one at its first use."""
    sizes = (*range(2, 16), *range(16, 64, 2), *range(64, max_rows, 8), max_rows)
    return np.array(sorted({min(size, max_rows) for size in sizes}))


def _sums(worths: Worths) -> Worths:
    """Worth of the first 0, 1, ... rows; one that costs more than it is worth is left empty instead."""
    return np.concatenate((np.zeros(1), np.cumsum(np.maximum(worths, 0.0))))
