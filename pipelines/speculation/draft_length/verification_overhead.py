"""Learns what verifying costs outside of the engines.

A request that verifies asks draft and target anew in each round, while the target alone goes on by itself.
The time of a step includes this work of the server. If it counted for every step alike, speculation would
look as cheap as the target alone, and the target alone as slow as speculation.
"""

from __future__ import annotations

_UPDATE_SHARE = 0.05
_LARGEST_RATIO = 3.0  # a moment without CPU must not count as many steps
# Share of the difference that each step without verification forgets: while nothing is verified, an estimate
# that is too high could not correct itself.
_FORGOTTEN_SHARE = 0.001


class VerificationOverhead:
    """Time that a request takes outside of the engine in steps that verify and in others."""

    def __init__(self) -> None:
        self._verifying, self._plain = _Mean(), _Mean()

    def extra_s(self, num_requests: int) -> float:
        """Return how much longer a step takes because its requests verify; 0 until both kinds are known."""
        if not (self._verifying.count and self._plain.count):
            return 0.0
        return num_requests * max(self._verifying.seconds - self._plain.seconds, 0.0)

    def observe(self, num_requests: int, seconds: float, *, verifies: bool) -> None:
        """Learn from a step.

        Args:
            num_requests: Requests in the step.
            seconds: Its time outside of the engine, including the work that followed it.
            verifies: Whether all of its requests verified draft tokens; otherwise none did.
        """
        each_s = seconds / num_requests
        if verifies:
            self._verifying.add(each_s)
            return
        self._plain.add(each_s)
        self._verifying.seconds -= _FORGOTTEN_SHARE * (self._verifying.seconds - self._plain.seconds)


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
