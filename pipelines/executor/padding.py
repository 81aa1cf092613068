"""When to compute rows that nobody needs: an engine call of another shape than the one before costs more."""

from __future__ import annotations

from pipelines.speculation.step_costs import StepCosts


class StepPadding:
    """Keeps the number of rows of a step as it was while that is cheaper than to change it.

    OpenVINO prepares every layer anew when a shape changes, which takes as long as several rows. As with
    skis, rented until the rent has come to their price: dummy rows fill a step up until they have cost
    as much as one change, so that all that padding and changes cost is at most twice the least possible.

    Args:
        costs: Of the engine's steps, same shape as before; None: never pad.
        change_s: What a change of shape adds to a step, in seconds.
    """

    def __init__(self, costs: StepCosts | None = None, change_s: float = 0.0) -> None:
        self._costs = costs
        self._change_s = change_s
        self._num_rows = 0
        self._wasted_s = 0.0

    def rows(self, wanted: int) -> int:
        """Rows to compute where ``wanted`` are needed."""
        if self._costs is not None and self._num_rows > wanted:
            self._wasted_s += float(self._costs.seconds(self._num_rows) - self._costs.seconds(wanted))
            if self._wasted_s <= self._change_s:
                return self._num_rows
        if wanted != self._num_rows:
            self._num_rows, self._wasted_s = wanted, 0.0
        return wanted

    def forget(self) -> None:
        """Note that a step of another kind changed the shape."""
        self._num_rows = 0
