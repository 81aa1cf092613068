"""Loads of a benchmark: a number of concurrent requests, or random arrivals."""

from __future__ import annotations

import random
from dataclasses import dataclass

LEAST_REQUESTS = 4  # per measurement, so that no single prompt dominates it
NUM_ARRIVALS = 16  # per open-loop measurement


@dataclass(frozen=True)
class ClosedLoop:
    """A fixed number of concurrent requests; the next one starts when one is answered.

    Attributes:
        num_at_once: Number of concurrent requests.
    """

    num_at_once: int

    @property
    def num_requests(self) -> int:
        """Number of requests of one measurement, at least two per worker."""
        return max(LEAST_REQUESTS, 2 * self.num_at_once)

    def __str__(self) -> str:
        return f"{self.num_at_once} concurrent"


@dataclass(frozen=True)
class OpenLoop:
    """Requests that arrive at random times, whether or not the server keeps up.

    Attributes:
        share_of_capacity: Mean arrival rate as a share of the requests per second that the target alone
            answers at the greatest closed load.
    """

    share_of_capacity: float

    @property
    def num_requests(self) -> int:
        """Number of requests of one measurement."""
        return NUM_ARRIVALS

    def __str__(self) -> str:
        return f"arrivals at {self.share_of_capacity:g} of capacity"


Load = ClosedLoop | OpenLoop


def poisson_arrivals(rate_per_s: float, count: int, seed: int) -> tuple[float, ...]:
    """Draw arrival times of a Poisson process, whose gaps are independent and exponential.

    Args:
        rate_per_s: Mean arrivals per second.
        count: Number of arrivals.
        seed: The same seed gives the same times.

    Returns:
        Seconds from the start, increasing.
    """
    drawn = random.Random(seed)
    times = []
    now_s = 0.0
    for _ in range(count):
        now_s += drawn.expovariate(rate_per_s)
        times.append(now_s)
    return tuple(times)
