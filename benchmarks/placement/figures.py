"""Summarizes runs of a fleet: times to first token, and the share of the prompts that a cache had."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.placement.fleet import Lookups
from pipelines.bench.report.blocks import Blocks

STATISTICS = ("p50", "mean", "p99")


@dataclass(frozen=True)
class Run:
    """The measured requests of one run.

    Attributes:
        ttft_s: Time to first token of each request, from its arrival.
        lookups: What the servers looked up meanwhile.
    """

    ttft_s: tuple[float, ...]
    lookups: Lookups


def figures_of(runs: Mapping[str, Sequence[Run]], beside: str) -> list[dict[str, Any]]:
    """Summarize the runs of each choice of servers.

    Args:
        runs: Choice -> its run in each round; all choices get the same requests in a round.
        beside: The choice with which the others are compared: their time divided by its own, as ratios of
            geometric means over the rounds with the intervals of ``Blocks``.
    """
    ratios = {}
    for name in STATISTICS:
        speeds = {
            choice: [1 / _statistics(run.ttft_s)[name] for run in of_choice]
            for choice, of_choice in runs.items()
        }
        blocks = Blocks(speeds)
        ratios[name] = {choice: blocks.ratio(beside, choice) for choice in runs}
    return [
        {
            "choice": choice,
            "found_share": _found_share(of_choice),
            "ttft_s": _statistics([each for run in of_choice for each in run.ttft_s]),
            "beside": {name: asdict(ratios[name][choice]) for name in STATISTICS},
        }
        for choice, of_choice in runs.items()
    ]


def _statistics(times_s: Sequence[float]) -> dict[str, float]:
    return {
        "p50": statistics.median(times_s),
        "mean": statistics.fmean(times_s),
        "p99": float(np.quantile(times_s, 0.99)),
    }


def _found_share(runs: Sequence[Run]) -> float:
    found = sum(run.lookups.num_found for run in runs)
    return found / sum(run.lookups.num_looked_up for run in runs)
