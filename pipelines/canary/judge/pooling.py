"""Pool the evidence of several servers.

A pair of requests is of one server, so its stake says nothing of how the servers differ. If no server's
regression exceeds a limit, no bet on any pair grows on average, whichever server it comes from. So bets on
the pairs of all servers are one test supermartingale, also if the evidence so far decides where the next
pairs come from, as it does when the candidate goes to further servers.

That evidence is about all servers together. A candidate that is worse on one of them hides among the others,
so each server also bets alone. All of these e-values are mixed with weights that are fixed beforehand: half
for all servers together, and 1 / (2 i (i + 1)) for the i-th server that gets the candidate. These weights sum
to 1 for any number of servers. What is reserved for servers that are still to come stays as it is. Were the
weights adapted to the number of servers that have come, each arrival would add capital, and no bound would
hold.

Sources: as ``bets``; Vovk and Wang 2021, arXiv 1912.06116 (a weighted mean of e-values with fixed weights is
an e-value under any dependence).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipelines.canary.judge.counts import Side
from pipelines.canary.judge.measures import Measure


def mixed(together: float, alone: Sequence[float]) -> float:
    """Mix the evidence of all servers together with that of each server.

    Args:
        together: Logarithm of the e-value of all servers together.
        alone: [n], logarithms of the e-values of the servers, in the order in which they got the candidate.
    """
    of_servers = [each - math.log(number * (number + 1)) for number, each in enumerate(alone, 1)]
    still_to_come = -math.log(len(alone) + 1)
    return float(np.logaddexp.reduce([together, *of_servers, still_to_come])) - math.log(2)


@dataclass(frozen=True)
class Stratified:
    """A regression of which each server gives evidence of its own, such as that of a quantile.

    Servers that differ have no common quantile, so their times cannot be one sample. The product of e-values
    is one: what happens at a server does not change what is expected at another.

    Attributes:
        strata: Measures of the servers; at least one.
    """

    strata: tuple[Measure, ...]

    @property
    def num(self) -> int:
        """Number of trials."""
        return sum(stratum.num for stratum in self.strata)

    @property
    def regression_range(self) -> tuple[float, float]:
        """Range of the regression, which is the same for all servers."""
        return self.strata[0].regression_range

    @property
    def estimate(self) -> float | None:
        """Mean of the servers' regressions, weighted by their trials."""
        known = [(each.estimate, each.num) for each in self.strata if each.estimate is not None]
        total = sum(num for _, num in known)
        return sum(estimate * num for estimate, num in known) / total if total else None

    def log_evidence(self, side: Side, regression: float, growth: float = 1.0) -> float:
        """Multiply the evidence of the servers."""
        return sum(each.log_evidence(side, regression, growth) for each in self.strata)

    def first(self, num: int) -> Stratified:
        """Return the measure of ``num`` trials, the first ones of each server in proportion."""
        ends = np.rint(np.cumsum([each.num for each in self.strata]) * num / max(1, self.num)).astype(int)
        nums = np.diff(ends, prepend=0)
        return Stratified(tuple(each.first(int(n)) for each, n in zip(self.strata, nums, strict=True)))
