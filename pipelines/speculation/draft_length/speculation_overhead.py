"""Learns what speculation costs outside of the engines.

A request that speculates asks draft and target anew in each round, while the target alone goes on by itself.
The time of a step includes this work of the server. If it counted for every step alike, speculation would
look as cheap as the target alone, and the target alone as slow as speculation.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Literal

from pipelines.speculation.draft_length.load_class import load_class

Kind = Literal["alone", "adapted", "fixed"]
"""Whether the requests of a step get no drafts, drafts whose length the server adapts, or others."""

_UPDATE_SHARE = 0.05
_LARGEST_RATIO = 3.0  # a moment without CPU must not count as many steps
# Share of the difference that each step without speculation forgets: while there is none, an estimate
# that is too high could not correct itself.
_FORGOTTEN_SHARE = 0.001


class SpeculationOverhead:
    """Time that a request takes outside of the engine in steps with speculation and in others.

    A part of that time belongs to the step, however many requests it has. So each class of loads has means of
    its own.

    Attributes:
        num_adapted: Requests that speculate now with draft lengths that the server adapts; 0 while it drafts
            for none.
    """

    def __init__(self) -> None:
        self.num_adapted = 0
        self._means: defaultdict[tuple[int, Kind], _Mean] = defaultdict(_Mean)

    def extra_s(self, num_requests: int, kind: Kind = "adapted") -> float:
        """Return how much longer a step takes because its requests speculate; 0 until that is known."""
        load = load_class(num_requests)
        speculating, alone = self._means[load, kind], self._means[load, "alone"]
        if not (speculating.count and alone.count):
            return 0.0
        return num_requests * max(speculating.seconds - alone.seconds, 0.0)

    def observe(self, num_requests: int, seconds: float, kind: Kind) -> None:
        """Learn from a step.

        Args:
            num_requests: Requests in the step.
            seconds: Its time outside of the engine, including the work that followed it.
            kind: Whether all of its requests speculate.
        """
        load = load_class(num_requests)
        mean = self._means[load, kind]
        mean.add(seconds / num_requests)
        if kind == "alone":
            for other in (self._means[load, "adapted"], self._means[load, "fixed"]):
                other.seconds -= _FORGOTTEN_SHARE * (other.seconds - mean.seconds)


class _Mean:
    """A mean of the latest values; at first of all."""

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        if self.count > 1:
            seconds = min(seconds, _LARGEST_RATIO * self.seconds)
        self.seconds += max(_UPDATE_SHARE, 1 / self.count) * (seconds - self.seconds)
