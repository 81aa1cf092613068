"""How much is asked at a time: so many requests at once, or requests that arrive when they please."""

from __future__ import annotations

import random
from dataclasses import dataclass

LEAST_REQUESTS = 4  # per measurement: one or two would make it the measurement of a prompt
NUM_ARRIVALS = 16  # per open-loop measurement


@dataclass(frozen=True)
class ClosedLoop:
    """A fixed number of requests at once: the next begins when one is answered.

    Attributes:
        num_at_once: Requests at once.
    """

    num_at_once: int

    @property
    def num_requests(self) -> int:
        """Requests of one measurement: each worker answers at least two."""
        return max(LEAST_REQUESTS, 2 * self.num_at_once)

    def __str__(self) -> str:
        return f"{self.num_at_once} at once"


@dataclass(frozen=True)
class OpenLoop:
    """Requests arrive at random, whether or not the server keeps up.

    Attributes:
        share_of_capacity: Mean arrival rate, as a share of the requests per second that the target
            alone answers at the greatest closed load.
    """

    share_of_capacity: float

    @property
    def num_requests(self) -> int:
        """Requests of one measurement."""
        return NUM_ARRIVALS

    def __str__(self) -> str:
        return f"arrivals at {self.share_of_capacity:g} of capacity"


Load = ClosedLoop | OpenLoop


def poisson_arrivals(rate_per_s: float, count: int, seed: int) -> tuple[float, ...]:
    """Arrival times of a Poisson process: gaps are independent and exponential.

    Args:
        rate_per_s: Mean arrivals per second.
        count: Arrivals wanted.
        seed: The same seed gives the same times.

    Returns:
        Seconds from the beginning, increasing.
    """
    drawn = random.Random(seed)
    times = []
    now_s = 0.0
    for _ in range(count):
        now_s += drawn.expovariate(rate_per_s)
        times.append(now_s)
    return tuple(times)
