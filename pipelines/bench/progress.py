"""Print one line per measurement to standard error, with the remaining time."""

from __future__ import annotations

import sys

from pipelines.bench.measuring import Measurement
from pipelines.bench.plan import Pace, Plan, expected_seconds


class MeasurementProgress:
    """Shows the progress of a plan; called with each measurement.

    Args:
        plan: Plan of the benchmark.
        pace: Expected duration of each measurement; the remaining time is scaled by the actual durations.
    """

    def __init__(self, plan: Plan, pace: Pace) -> None:
        self._pace = pace
        self._num_left = self._num_all = len(plan.cells) * plan.repetitions * len(plan.arms)
        self._expected_left_s = expected_seconds(plan, pace)
        self._expected_s = self._actual_s = 0.0

    def __call__(self, measurement: Measurement) -> None:
        """Print the measurement and the remaining time."""
        expected_s = self._pace.seconds_of(measurement.cell)
        self._expected_s += expected_s
        self._expected_left_s -= expected_s
        self._actual_s += measurement.wall_s
        self._num_left -= 1
        minutes = self._expected_left_s * self._actual_s / self._expected_s / 60
        print(
            f"[{self._num_all - self._num_left}/{self._num_all}, {minutes:.0f} min left] {measurement.cell}, "
            f"repetition {measurement.repetition + 1}, {measurement.arm}: "
            f"{measurement.output_tokens_per_s:.1f} tokens/s",
            file=sys.stderr,
            flush=True,
        )
