"""Learns what verifying costs outside of the engines.

A request that verifies asks draft and target anew in each round, while the target alone goes on by itself.
The time of a step includes this work of the server. If it counted for every step alike, speculation would
look as cheap as the target alone, and the target alone as slow as speculation.
"""

from __future__ import annotations

_UPDATE_SHARE = 0.05
_LARGEST_RATIO = 3.0  # a moment without CPU must not count as many steps


class VerificationOverhead:
    """Time that a request takes outside of the engine in steps that verify and in others."""

    def __init__(self) -> None:
        self._verifying_s: float | None = None
        self._plain_s: float | None = None

    def seconds(self, num_requests: int) -> float:
        """Return how much longer a step takes because its requests verify; 0 until both kinds are known."""
        if self._verifying_s is None or self._plain_s is None:
            return 0.0
        return num_requests * max(self._verifying_s - self._plain_s, 0.0)

    def observe(self, num_requests: int, seconds: float, *, verifies: bool) -> None:
        """Learn from a step.

        Args:
            num_requests: Requests in the step.
            seconds: Its time outside of the engine, including the work that followed it.
            verifies: Whether it verified draft tokens.
        """
        each_s = seconds / num_requests
        if verifies:
            self._verifying_s = _updated(self._verifying_s, each_s)
        else:
            self._plain_s = _updated(self._plain_s, each_s)


def _updated(mean_s: float | None, seconds: float) -> float:
    if mean_s is None:
        return seconds
    return mean_s + _UPDATE_SHARE * (min(seconds, _LARGEST_RATIO * mean_s) - mean_s)
