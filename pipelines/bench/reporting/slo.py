"""Service-level objective for goodput, the rate of requests that are answered fast enough."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Slo:
    """Limits of a good request, which must keep both (as in AIPerf's goodput).

    Attributes:
        ttft_s: Longest time to first token.
        itl_s: Longest time per token after it, (e2e - TTFT) / (tokens - 1).
    """

    ttft_s: float
    itl_s: float

    def is_kept_by(self, ttft_s: float | None, itl_s: float | None) -> bool:
        """Return whether an answer with these times keeps the limits; one of a single token has no ITL."""
        return ttft_s is not None and ttft_s <= self.ttft_s and (itl_s is None or itl_s <= self.itl_s)
