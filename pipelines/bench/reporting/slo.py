"""Service-level objective for goodput, the rate of requests that are answered fast enough."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Timed(Protocol):
    """An answer with its times, such as ``Generation``."""

    @property
    def ttft_s(self) -> float | None:
        """Seconds to the first token; None if it was not observed."""

    @property
    def itl_s(self) -> float | None:
        """Seconds per token after the first; None if there is none."""


@dataclass(frozen=True)
class Slo:
    """Limits of a good request, which must keep both (as in AIPerf's goodput).

    Attributes:
        ttft_s: Longest time to first token.
        itl_s: Longest time per token after it, (e2e - TTFT) / (tokens - 1).
    """

    ttft_s: float
    itl_s: float

    def is_kept_by(self, generation: Timed) -> bool:
        """Return whether an answer keeps the limits; one of a single token has no ITL."""
        ttft_s, itl_s = generation.ttft_s, generation.itl_s
        return ttft_s is not None and ttft_s <= self.ttft_s and (itl_s is None or itl_s <= self.itl_s)
