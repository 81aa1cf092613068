"""One line per measurement on standard error, with the time that is left."""

from __future__ import annotations

import sys

from pipelines.bench.measuring import Measurement
from pipelines.bench.plan import Pace, Plan, expected_seconds


class MeasurementProgress:
    """Called with each measurement of a plan.

    Args:
        plan: All that is measured.
        pace: Says how long each measurement was expected to take; what is left is scaled by how long
            those so far really took.
    """

    def __init__(self, plan: Plan, pace: Pace) -> None:
        self._pace = pace
        self._num_left = self._num_all = len(plan.cells) * plan.repetitions * len(plan.arms)
        self._expected_left_s = expected_seconds(plan, pace)
        self._expected_s = self._really_s = 0.0

    def __call__(self, measurement: Measurement) -> None:
        """Say what was measured."""
        expected_s = self._pace.seconds_of(measurement.cell)
        self._expected_s += expected_s
        self._expected_left_s -= expected_s
        self._really_s += measurement.wall_s
        self._num_left -= 1
        minutes = self._expected_left_s * self._really_s / self._expected_s / 60
        print(
            f"[{self._num_all - self._num_left}/{self._num_all}, {minutes:.0f} min left] {measurement.cell}, "
            f"repetition {measurement.repetition + 1}, {measurement.arm}: "
            f"{measurement.output_tokens_per_s:.1f} tokens/s",
            file=sys.stderr,
            flush=True,
        )
