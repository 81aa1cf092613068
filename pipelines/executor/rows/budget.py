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

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pipelines.speculation.draft_length.step_costs import StepCosts

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
    sizes = (*range(2, 16), *range(16, 64, 2), *range(64, max_rows, 8), max_rows)
    return np.array(sorted({min(size, max_rows) for size in sizes}))


def _sums(worths: Worths) -> Worths:
    """Return the worth of the first 0, 1, ... rows; rows with a negative worth count as 0."""
    return np.concatenate((np.zeros(1), np.cumsum(np.maximum(worths, 0.0))))
