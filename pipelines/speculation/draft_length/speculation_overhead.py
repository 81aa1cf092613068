"""Learns what speculation costs outside of the engines.

A request that speculates asks draft and target anew in each round, while the target alone goes on by itself.
The time of a step includes this work of the server. If it counted for every step alike, speculation would
look as cheap as the target alone, and the target alone as slow as speculation.
"""

from __future__ import annotations

_UPDATE_SHARE = 0.05
_LARGEST_RATIO = 3.0  # a moment without CPU must not count as many steps
# Share of the difference that each step without speculation forgets: while there is none, an estimate
# that is too high could not correct itself.
_FORGOTTEN_SHARE = 0.001


class SpeculationOverhead:
    """Time that a request takes outside of the engine in steps with speculation and in others.

    Attributes:
        is_on: Whether the requests speculate now.
    """

    def __init__(self) -> None:
        self.is_on = False
        self._speculating, self._plain = _Mean(), _Mean()

    def extra_s(self, num_requests: int) -> float:
        """Return how much longer a step takes because its requests speculate; 0 until both are known."""
        if not (self._speculating.count and self._plain.count):
            return 0.0
        return num_requests * max(self._speculating.seconds - self._plain.seconds, 0.0)

    def observe(self, num_requests: int, seconds: float, *, speculates: bool) -> None:
        """Learn from a step.

        Args:
            num_requests: Requests in the step.
            seconds: Its time outside of the engine, including the work that followed it.
            speculates: Whether its requests speculate.
        """
        each_s = seconds / num_requests
        if speculates:
            self._speculating.add(each_s)
            return
        self._plain.add(each_s)
        self._speculating.seconds -= _FORGOTTEN_SHARE * (self._speculating.seconds - self._plain.seconds)


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
