"""Teaches the cost model what steps without prompts took."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from pipelines.executor.lane import Work
from pipelines.speculation.draft_length.step_costs import Kind, StepCosts


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
