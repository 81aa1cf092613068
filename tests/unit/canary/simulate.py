"""Simulate rollouts from recorded requests and count the judge's verdicts.

The requests of candidate and stable pair are drawn with replacement from recorded answers of one stable pair,
so that they differ in the fault alone. The
candidate replays every answer of the stable pair, with draft lengths of its own. The simulation asks for the
verdict at every look until there is one. Draws are independent: sessions and bursts of real traffic, which
pairing accounts for, are not simulated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipelines.canary.judge.limits import Limits, Slo
from pipelines.canary.judge.metrics import Metric, metrics_of
from pipelines.canary.judge.verdict import judge
from pipelines.program import Verdict
from pipelines.router.arms import Arm
from pipelines.router.observation import Observation
from tests.unit.canary.faults import Fault, with_rounds

_ARMS: tuple[Arm, ...] = ("stable", "candidate")

Pools = dict[str, dict[Arm, list[Observation]]]
"""Recorded requests by load band and arm."""


@dataclass(frozen=True)
class Run:
    """One simulated rollout.

    ``verdict``: first verdict other than ``inconclusive``, or ``inconclusive`` if there was none.
    """

    verdict: Verdict
    num_pairs: int


def simulate(
    recorded: Sequence[Observation], fault: Fault, limits: Limits, slo: Slo, num_runs: int, max_pairs: int
) -> list[Run]:
    """Simulate rollouts of a candidate with a fault.

    Args:
        recorded: Requests of ``stable``.
        slo: Service-level objective, as for ``analyse``.
        max_pairs: Pairs of a request of the candidate and one of the stable pair after which a rollout ends
            without a verdict.
    """
    pools: Pools = {}
    for request in recorded:
        pools.setdefault(request.band, {}).setdefault(request.arm, []).append(request)
    seeds = np.random.default_rng(0).spawn(num_runs)
    return [_run(pools, fault, limits, slo, max_pairs, rng) for rng in seeds]


def _run(
    pools: Pools, fault: Fault, limits: Limits, slo: Slo, max_pairs: int, rng: np.random.Generator
) -> Run:
    requests: list[Observation] = []
    num_drawn = 0
    metrics: list[Metric] = []
    for num_pairs in looks(limits.min_requests, max_pairs):
        if num_pairs > num_drawn:  # draw in doubling batches: requests after the verdict are not needed
            wanted = min(2 * num_pairs, max_pairs)
            requests += _draw(pools, fault, range(num_drawn, wanted), rng)
            num_drawn = wanted
            metrics = metrics_of(requests, limits, slo)
        share = num_pairs / num_drawn
        seen = [replace(each, measure=first(each.measure, int(share * each.measure.num))) for each in metrics]
        verdict = judge(seen, limits).verdict
        if verdict != "inconclusive":
            break
    return Run(verdict, num_pairs)


def _draw(pools: Pools, fault: Fault, numbers: range, rng: np.random.Generator) -> Iterator[Observation]:
    """Draw requests of all arms, in the load bands in which the stable pair was recorded."""
    bands = list(pools)
    sizes = np.array([len(pools[band]["stable"]) for band in bands], np.float64)
    chosen = rng.choice(len(bands), len(numbers), p=sizes / sizes.sum())
    places = rng.random((len(numbers), 2))
    for row, number in enumerate(numbers):
        pool = pools[bands[chosen[row]]]
        for arm, place in zip(_ARMS, places[row], strict=True):
            source = pool["stable"]
            known = {"request_id": f"{arm}-{number}", "arm": arm, "arrived_at_s": float(number)}
            drawn = replace(source[int(place * len(source))], **known)
            if arm == "stable" and not drawn.failure:
                yield fault.apply(_replayed(drawn, rng), rng)
            yield fault.apply(drawn, rng) if arm == "candidate" else drawn


def _replayed(request: Observation, rng: np.random.Generator) -> Observation:
    """Return the answer with other draft lengths, as a pair under another load would choose them."""
    rounds: list[tuple[int, int]] = []
    for drafted, accepted in zip(request.drafted_per_round, request.accepted_per_round, strict=True):
        left, right = drafted, accepted
        while left:
            portion = int(rng.integers(1, left + 1))
            rounds.append((portion, min(portion, right)))
            if right <= portion:
                break
            left, right = left - portion - 1, right - portion - 1
        else:
            rounds.append((0, 0))
    repeated = {"arm": "candidate", "is_replay": True, "answer": "equal"}
    return replace(with_rounds(request, rounds), num_common_tokens=request.num_output_tokens, **repeated)


def looks(first: int, last: int) -> Iterator[int]:
    """Yield numbers of trials from ``first`` to ``last``, each about a tenth larger than the one before."""
    size = first
    while size < last:
        yield size
        size = math.ceil(size * 1.1)
    yield last


def first(measure: Any, num: int) -> Any:
    """Return a measure of the first ``num`` trials."""
    arrays = {name: value[:num] for name, value in vars(measure).items() if isinstance(value, np.ndarray)}
    return replace(measure, **arrays)
