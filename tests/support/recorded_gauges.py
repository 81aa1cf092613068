"""A stand-in for the metrics port that records what it is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence


class RecordedGauges:
    """Records the values of every distribution."""

    def __init__(self) -> None:
        self.values: dict[str, list[float]] = {}

    def add_histogram(self, name: str, buckets: Sequence[float]) -> Callable[[float], None]:
        assert list(buckets) == sorted(buckets)
        return self.values.setdefault(name, []).append
