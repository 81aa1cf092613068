"""Teaches the cost model what steps without prompts took."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from pipelines.executor.lane import Work
from pipelines.speculation.draft_length.step_costs import StepCosts


@dataclass(frozen=True)
class RowSteps:
    """Consecutive steps of the same rows.

    Attributes:
        work: What the last of the steps computed.
        num_rows: Rows of each, with dummy rows.
        count: Number of steps.
        engine_s: Time of all of them inside the engine.
    """

    work: SequenceOf[Work]
    num_rows: int
    count: int
    engine_s: float

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
        is_verified = any(item.sequence.is_verification for item in self.work)
        speculates = costs.overhead.is_on or is_verified  # a request may have a draft length of its own
        outside_s = max(seconds - self.engine_s, 0.0) / self.count
        costs.overhead.observe(len(chunks), outside_s, speculates=speculates)
        if speculates:
            seconds = max(seconds - costs.overhead.extra_s(len(chunks)), self.engine_s)
        costs.observe(self.num_rows, positions, seconds / self.count, num_steps=self.count)
