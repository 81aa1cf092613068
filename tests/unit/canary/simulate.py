"""Simulate rollouts from recorded requests and count the judge's verdicts.

The requests of candidate, stable pair and control are drawn with replacement from recorded answers of one
stable pair and of the target alone, so that candidate and stable pair differ in the fault alone. The
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

from pipelines.bench.reporting.slo import Slo
from pipelines.canary.judge.limits import Limits
from pipelines.canary.judge.metrics import Metric, metrics_of
from pipelines.canary.judge.observed import ObservedRequest
from pipelines.canary.judge.verdict import Analysis, Word, judge
from pipelines.router.arms import Arm
from tests.unit.canary.faults import Fault, with_rounds

_ARMS: tuple[Arm, ...] = ("stable", "candidate", "control")


@dataclass(frozen=True)
class Plan:
    """Size of a simulation.

    Attributes:
        num_runs: Number of rollouts.
        max_pairs: Pairs of one request of the candidate and one of the stable pair after which a rollout ends
            without a verdict.
        control_share: Requests of the control per pair.
        seed: Seed of all draws.
    """

    num_runs: int
    max_pairs: int
    control_share: float = 0.5
    seed: int = 0


@dataclass(frozen=True)
class Run:
    """Outcome of one simulated rollout.

    Attributes:
        verdict: First verdict other than ``inconclusive``, or ``inconclusive`` if there was none.
        num_pairs: Number of pairs at that look.
        failed: Metrics that failed at that look.
    """

    verdict: Word
    num_pairs: int
    failed: tuple[str, ...]


def simulate(
    recorded: Sequence[ObservedRequest], fault: Fault, limits: Limits, slo: Slo, plan: Plan
) -> list[Run]:
    """Simulate rollouts of a candidate with a fault.

    Args:
        recorded: Requests of ``stable`` and ``control``, both in every load band that occurs.
        fault: Fault of the candidate.
        limits: Limits of the judge.
        slo: Service-level objective, as for ``analyse``.
        plan: Size of the simulation.
    """
    pools = _pools(recorded)
    seeds = np.random.default_rng(plan.seed).spawn(plan.num_runs)
    return [_run(pools, fault, limits, slo, plan, rng) for rng in seeds]


def _run(
    pools: dict[str, dict[Arm, list[ObservedRequest]]],
    fault: Fault,
    limits: Limits,
    slo: Slo,
    plan: Plan,
    rng: np.random.Generator,
) -> Run:
    requests: list[ObservedRequest] = []
    num_drawn = 0
    metrics: list[Metric] = []
    for num_pairs in looks(limits.min_requests, plan.max_pairs):
        if num_pairs > num_drawn:  # draw in doubling batches: requests after the verdict are not needed
            wanted = min(2 * num_pairs, plan.max_pairs)
            requests += _draw(pools, fault, plan, range(num_drawn, wanted), rng)
            num_drawn = wanted
            metrics = metrics_of(requests, limits, slo)
        analysis = judge([_at_look(metric, num_pairs / num_drawn) for metric in metrics], limits)
        if analysis.verdict != "inconclusive":
            break
    return Run(analysis.verdict, num_pairs, _failed(analysis))


def _at_look(metric: Metric, share: float) -> Metric:
    return replace(metric, measure=first(metric.measure, math.floor(share * metric.measure.num)))


def _failed(analysis: Analysis) -> tuple[str, ...]:
    return tuple(each.metric.name for each in analysis.judged if each.verdict == "fail")


def _pools(recorded: Sequence[ObservedRequest]) -> dict[str, dict[Arm, list[ObservedRequest]]]:
    pools: dict[str, dict[Arm, list[ObservedRequest]]] = {}
    for request in recorded:
        pools.setdefault(request.band, {}).setdefault(request.arm, []).append(request)
    return pools


def _draw(
    pools: dict[str, dict[Arm, list[ObservedRequest]]],
    fault: Fault,
    plan: Plan,
    numbers: range,
    rng: np.random.Generator,
) -> Iterator[ObservedRequest]:
    """Draw requests of all arms, in the load bands in which the stable pair was recorded."""
    bands = list(pools)
    sizes = np.array([len(pools[band]["stable"]) for band in bands], np.float64)
    chosen = rng.choice(len(bands), len(numbers), p=sizes / sizes.sum())
    has_control = rng.random(len(numbers)) < plan.control_share
    places = rng.random((len(numbers), 3))
    for row, number in enumerate(numbers):
        pool = pools[bands[chosen[row]]]
        for arm, place in zip(_ARMS, places[row], strict=True):
            if arm == "control" and not has_control[row]:
                continue
            source = pool["control" if arm == "control" else "stable"]
            drawn = replace(
                source[int(place * len(source))],
                request_id=f"{arm}-{number}",
                arm=arm,
                arrived_at_s=float(number),
                answer="",
                prompt_id="",
                session_id="",
                is_replay=False,
            )
            if arm == "stable" and not drawn.failure:
                yield fault.apply(_replayed(drawn, rng), rng)
            yield fault.apply(drawn, rng) if arm == "candidate" else drawn


def _replayed(request: ObservedRequest, rng: np.random.Generator) -> ObservedRequest:
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
    return replace(
        with_rounds(request, rounds),
        arm="candidate",
        answer="equal",
        is_replay=True,
        num_common_tokens=request.num_output_tokens,
    )


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
