"""Goodput: how many requests per second are answered as fast as they must be."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pipelines.client import Generation
from pipelines.errors import VerificationError

TTFT_FACTOR = 5.0  # by default a first token may take so many times what it takes an idle server
ITL_FACTOR = 2.0  # and each further one so many times


class Timed(Protocol):
    """An answer, as far as it is judged here; ``Generation`` is one."""

    @property
    def ttft_s(self) -> float | None:
        """Seconds to the first token; None if nobody saw it come."""

    @property
    def itl_s(self) -> float | None:
        """Seconds per token after it; None if there is none."""


@dataclass(frozen=True)
class Slo:
    """Limits that a good request keeps (AIPerf's goodput: both at once).

    Attributes:
        ttft_s: Seconds to the first token.
        itl_s: Seconds per token after it, (e2e - TTFT) / (tokens - 1).
    """

    ttft_s: float
    itl_s: float

    def is_kept_by(self, generation: Timed) -> bool:
        """Whether an answer was fast enough; one of a single token has no ITL to break."""
        ttft_s, itl_s = generation.ttft_s, generation.itl_s
        return ttft_s is not None and ttft_s <= self.ttft_s and (itl_s is None or itl_s <= self.itl_s)

    def num_good(self, generations: Iterable[Generation]) -> int:
        """Good ones among them."""
        return sum(map(self.is_kept_by, generations))


def default_slo(alone: Sequence[Generation]) -> Slo:
    """Limits from what an idle server does.

    Args:
        alone: Answers of the target alone to one request at a time.

    Raises:
        VerificationError: None of them has two tokens.
    """
    ttfts = [each.ttft_s for each in alone if each.ttft_s is not None]
    itls = [each.itl_s for each in alone if each.itl_s is not None]
    if not ttfts or not itls:
        raise VerificationError(
            "limits for goodput cannot be derived",
            values=f"{len(alone)} answers of the target alone",
            limit="at least one of two tokens or more is needed",
            remedy="give --slo-ttft-ms and --slo-itl-ms, or take other prompts",
        )
    return Slo(TTFT_FACTOR * statistics.median(ttfts), ITL_FACTOR * statistics.median(itls))
