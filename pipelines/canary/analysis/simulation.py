"""What the analysis would have done, had it looked all the time: rollouts made of recorded requests.

Candidate, stable pair and control are drawn with replacement from recorded answers of one stable pair and
of the target alone, so that nothing but the fault differs between the first two. The candidate repeats every
answer of the stable pair, drafting as it likes. The verdict is asked for at every look until there is one.
Draws are independent; real traffic has sessions and bursts, which pairing takes care of and this does not
show.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipelines.bench.slo import Slo
from pipelines.canary.analysis.faults import Fault, with_rounds
from pipelines.canary.analysis.limits import Limits
from pipelines.canary.analysis.metrics import Metric, metrics_of
from pipelines.canary.analysis.observed import ObservedRequest
from pipelines.canary.analysis.verdict import Analysis, Word, judge
from pipelines.errors import CanaryError
from pipelines.routing.arms import Arm
from pipelines.validation.rates import clopper_pearson

_GROWTH = 1.1  # between looks
_ARMS: tuple[Arm, ...] = ("stable", "candidate", "control")


@dataclass(frozen=True)
class Plan:
    """How much is simulated.

    Attributes:
        num_runs: Rollouts.
        max_pairs: Requests of the candidate, and as many of the stable pair, before a rollout is given up.
        control_share: Requests of the control for each of these.
        seed: Of all draws.
    """

    num_runs: int
    max_pairs: int
    control_share: float = 0.5
    seed: int = 0


@dataclass(frozen=True)
class Run:
    """One rollout.

    Attributes:
        verdict: The first one, or ``inconclusive`` to the end.
        num_pairs: At that look.
        failed: Metrics that failed then.
    """

    verdict: Word
    num_pairs: int
    failed: tuple[str, ...]


@dataclass(frozen=True)
class Simulation:
    """All rollouts with one fault.

    Attributes:
        fault: Which.
        runs: In the order of the draws.
    """

    fault: Fault
    runs: tuple[Run, ...]

    def share(self, verdict: Word) -> float:
        """Of rollouts with this verdict."""
        return self._count(verdict) / len(self.runs)

    def share_bounds(self, verdict: Word, confidence: float = 0.95) -> tuple[float, float]:
        """Where the probability of a verdict lies (Clopper-Pearson)."""
        return clopper_pearson(self._count(verdict), len(self.runs), confidence)

    def pairs_until(self, verdict: Word, share: float) -> int | None:
        """Pairs with which such a share of all rollouts had this verdict; None if fewer ever have."""
        nums = sorted(run.num_pairs for run in self.runs if run.verdict == verdict)
        rank = max(1, math.ceil(share * len(self.runs)))
        return nums[rank - 1] if rank <= len(nums) else None

    @property
    def reasons(self) -> Counter[str]:
        """How often each metric failed at the verdict."""
        return Counter(name for run in self.runs for name in run.failed)

    def _count(self, verdict: Word) -> int:
        return sum(run.verdict == verdict for run in self.runs)


def simulate(
    recorded: Sequence[ObservedRequest], fault: Fault, limits: Limits, slo: Slo, plan: Plan
) -> Simulation:
    """Carry rollouts out on paper.

    Args:
        recorded: Answers of ``stable`` and ``control``, in every load band that occurs.
        fault: What the candidate has.
        limits: By which it is judged.
        slo: As for ``analyse``.
        plan: How much.

    Raises:
        CanaryError: Nothing was recorded of an arm in a load band.
    """
    pools = _pools(recorded)
    runs = []
    for rng in np.random.default_rng(plan.seed).spawn(plan.num_runs):
        runs.append(_run(pools, fault, limits, slo, plan, rng))
    return Simulation(fault, tuple(runs))


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
        if num_pairs > num_drawn:  # twice as many at a time: what comes after the verdict is not needed
            wanted = min(2 * num_pairs, plan.max_pairs)
            requests += _draw(pools, fault, plan, range(num_drawn, wanted), rng)
            num_drawn = wanted
            metrics = metrics_of(requests, limits, slo)
        analysis = judge([_at_look(metric, num_pairs / num_drawn) for metric in metrics], limits)
        if analysis.verdict != "inconclusive":
            break
    return Run(analysis.verdict, num_pairs, _failed(analysis))


def looks(first: int, last: int) -> Iterator[int]:
    """Sizes at which the verdict is asked for, from ``first`` to ``last``."""
    size = first
    while size < last:
        yield size
        size = math.ceil(size * _GROWTH)
    yield last


def _at_look(metric: Metric, share: float) -> Metric:
    return replace(metric, measure=metric.measure.first(math.floor(share * metric.measure.num)))


def _failed(analysis: Analysis) -> tuple[str, ...]:
    return tuple(each.metric.name for each in analysis.judged if each.verdict == "fail")


def _pools(recorded: Sequence[ObservedRequest]) -> dict[str, dict[Arm, list[ObservedRequest]]]:
    pools: dict[str, dict[Arm, list[ObservedRequest]]] = {}
    for request in recorded:
        pools.setdefault(request.band, {}).setdefault(request.arm, []).append(request)
    for band, arms in pools.items():
        if missing := {"stable", "control"} - arms.keys():
            raise CanaryError(
                "recorded requests cannot stand for a rollout",
                values=f"none of {', '.join(sorted(missing))} in load band {band}",
                limit="answers of the stable pair and of the target alone in every load band",
                remedy="record with some weight on the control",
            )
    if not pools:
        raise CanaryError(
            "recorded requests cannot stand for a rollout",
            values="none were recorded",
            limit="some of the stable pair and of the target alone",
            remedy="let requests through first",
        )
    return pools


def _draw(
    pools: dict[str, dict[Arm, list[ObservedRequest]]],
    fault: Fault,
    plan: Plan,
    numbers: range,
    rng: np.random.Generator,
) -> Iterator[ObservedRequest]:
    """Requests of all arms, in the load bands in which the stable pair was recorded."""
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
                tokens="",
                prompt_id="",
                session_id="",
                is_replay=False,
            )
            if arm == "stable" and not drawn.failure:
                yield fault.apply(_repeated(drawn, rng), rng)
            yield fault.apply(drawn, rng) if arm == "candidate" else drawn


def _repeated(request: ObservedRequest, rng: np.random.Generator) -> ObservedRequest:
    """The same answer, drafted in other portions, as a pair does that has more to do, or less."""
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
        tokens="equal",
        is_replay=True,
        num_common_tokens=request.num_output_tokens,
    )
