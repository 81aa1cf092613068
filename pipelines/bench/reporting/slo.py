"""Service-level objective for goodput, the rate of requests that are answered fast enough."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pipelines.client import Generation
from pipelines.errors import VerificationError

TTFT_FACTOR = 5.0  # default limits as multiples of the times of an idle server
ITL_FACTOR = 2.0


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

    def num_good(self, generations: Iterable[Generation]) -> int:
        """Count the answers that keep the limits."""
        return sum(map(self.is_kept_by, generations))


def default_slo(alone: Sequence[Generation]) -> Slo:
    """Derive limits from the times of an idle server.

    Args:
        alone: Answers of the target alone to one request at a time.

    Raises:
        VerificationError: No answer has two tokens.
    """
    ttfts = [each.ttft_s for each in alone if each.ttft_s is not None]
    itls = [each.itl_s for each in alone if each.itl_s is not None]
    if not ttfts or not itls:
        raise VerificationError(
            "limits for goodput cannot be derived",
            values=f"{len(alone)} answers of the target alone",
            limit="at least one answer of two tokens",
            remedy="set --slo-ttft-ms and --slo-itl-ms, or use other prompts",
        )
    return Slo(TTFT_FACTOR * statistics.median(ttfts), ITL_FACTOR * statistics.median(itls))
