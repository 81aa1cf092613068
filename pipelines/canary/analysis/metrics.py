"""From observed requests to the losses that a candidate is judged by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pipelines.bench.slo import Slo
from pipelines.canary.analysis.counts import FloatArray
from pipelines.canary.analysis.limits import Limit, Limits
from pipelines.canary.analysis.matched_rounds import Counts, MatchedRounds, matched_rounds
from pipelines.canary.analysis.measures import MeanDifference, MeanRatio, Measure, MedianRatio, Rate
from pipelines.canary.analysis.observed import ObservedRequest, Tokens
from pipelines.canary.analysis.pairing import Pair, pair_up
from pipelines.canary.analysis.quantiles import QuantileRatio
from pipelines.errors import CanaryError

_Read = Callable[[ObservedRequest], float | None]

_Count = Callable[[Counts], Counts]
"""What counts of so many draft tokens of each round: of the accepted it happened, of the drafted it could."""

_SLOWEST = 2.0  # times what the SLO allows; the scale of bets, so it must not be far from what occurs

_BY_GRAVITY: tuple[Tokens, ...] = ("equal", "tie", "unknown", "diverged")


@dataclass(frozen=True)
class Metric:
    """One loss.

    Attributes:
        name: As in ``Limits``, with the position or load band after a slash.
        measure: What was seen.
        limit: What is allowed.
        is_exact: Whether a single event fails.
        by_replays: Whether replays alone tell of it.
    """

    name: str
    measure: Measure
    limit: Limit
    is_exact: bool = False
    by_replays: bool = False


def metrics_of(requests: Sequence[ObservedRequest], limits: Limits, slo: Slo) -> list[Metric]:
    """Every loss that there are limits for.

    Args:
        requests: Of all arms.
        limits: Say what is judged.
        slo: For goodput, and as the unit of speed: end-to-end latency is compared in units of what it
            allows for an answer of that length, up to twice that.

    Raises:
        CanaryError: A load band has no limit.
    """
    _check_bands(requests, limits)
    pairs = pair_up(requests, "candidate", "stable")
    # A replay runs beside the request that it repeats, or after it: neither is timed as it would be alone.
    timed = pair_up([request for request in requests if not request.is_replay], "candidate", "stable")
    latencies = _values(timed, _or_never(lambda each: each.e2e_latency_s))
    return [
        Metric(
            "tokens", _tokens(requests, limits), limits.tokens, limits.runtime == "exact", by_replays=True
        ),
        Metric("errors", _rise(pairs, lambda each: each.failure == "error"), limits.errors),
        Metric("timeouts", _rise(timed, lambda each: each.failure == "timeout"), limits.timeouts),
        Metric("goodput", MeanDifference(*_values(timed, _good_by(slo)), sign=-1), limits.goodput),
        *_acceptance(pairs, limits),
        Metric("ttft", MedianRatio(*_values(timed, _or_never(lambda each: each.ttft_s))), limits.ttft),
        Metric("itl", MedianRatio(*_values(timed, _or_never(lambda each: each.itl_s))), limits.itl),
        Metric("e2e_tail", QuantileRatio(*latencies, limits.quantile), limits.e2e_tail),
        *_speed_ups(requests, limits, slo),
    ]


def _check_bands(requests: Sequence[ObservedRequest], limits: Limits) -> None:
    if unknown := {request.band for request in requests} - limits.speed_up.keys():
        raise CanaryError(
            "a load band has no limit",
            values=", ".join(sorted(unknown)),
            limit=f"speed_up names {', '.join(limits.speed_up)}",
            remedy="add the band to speed_up in the limits, or observe with these bands",
        )


def _tokens(requests: Sequence[ObservedRequest], limits: Limits) -> Rate:
    """The prompt is the trial, since two answers to one prompt diverge together; the worst counts."""
    worst: dict[str, int] = {}
    for request in sorted(requests, key=lambda request: request.arrived_at_s):
        if request.arm == "candidate" and request.tokens:
            key = request.prompt_id or f"request {request.request_id}"
            worst[key] = max(worst.get(key, 0), _BY_GRAVITY.index(request.tokens))
    gravity = np.array(list(worst.values()), np.float64)
    if limits.runtime == "exact":
        return Rate(gravity > 0, gravity > 0)
    return Rate(gravity > 2, gravity > 1)


def _acceptance(pairs: Sequence[Pair], limits: Limits) -> Iterator[Metric]:
    """Of replays, in the rounds in which they had the same to do (``matched_rounds``).

    A candidate with another target may say something else from the first token on: then there are none, and
    nothing to judge it by here.
    """
    replays = [pair for pair in pairs if pair.candidate.num_common_tokens is not None]
    rounds = matched_rounds(replays)
    has_rounds = np.bincount(rounds.pair, minlength=len(replays)) > 0
    has_parted = np.array(list(map(_has_parted, replays)), np.bool_)
    if (has_parted & ~has_rounds).sum() > (1 - limits.least_share) * len(replays):
        return

    def metric(name: str, count: _Count, limit: Limit) -> Metric:
        return Metric(name, MeanRatio(*_shares(rounds, count), sign=-1), limit, by_replays=True)

    yield metric("acceptance_rate", lambda counts: counts, limits.acceptance_rate)
    yield metric("acceptance_length", lambda counts: 1 + counts, limits.acceptance_length)
    for position in range(1, limits.survival_positions + 1):
        survival = metric(f"survival/{position}", _reaches(position), limits.survival)
        if survival.measure.num > limits.least_share * has_rounds.sum():
            yield survival


def _has_parted(pair: Pair) -> bool:
    return pair.candidate.num_common_tokens != pair.baseline.num_output_tokens


def _reaches(position: int) -> _Count:
    return lambda counts: (counts >= position).astype(np.int64)


def _shares(rounds: MatchedRounds, count: _Count) -> tuple[FloatArray, FloatArray]:
    """Of each request that has any, candidate and baseline: what happened of what could have."""
    possible, ours, theirs = (
        np.bincount(rounds.pair, count(tokens))
        for tokens in (rounds.depth, rounds.by_candidate, rounds.by_baseline)
    )
    has_any = possible > 0
    return ours[has_any] / possible[has_any], theirs[has_any] / possible[has_any]


def _speed_ups(requests: Sequence[ObservedRequest], limits: Limits, slo: Slo) -> Iterator[Metric]:
    def share_of_slowest(request: ObservedRequest) -> float | None:
        if request.failure:
            return 1.0
        if request.e2e_latency_s is None or not request.num_output_tokens:
            return None
        allowed_s = slo.ttft_s + (request.num_output_tokens - 1) * slo.itl_s
        return min(1.0, request.e2e_latency_s / (_SLOWEST * allowed_s))

    pairs = pair_up(requests, "candidate", "control")
    seen = Counter(each.band for each in requests if each.arm == "candidate" and not each.is_replay)
    for band, limit in limits.speed_up.items():
        if not seen[band] or seen[band] < limits.least_share * seen.total():
            continue
        of_band = [pair for pair in pairs if pair.candidate.band == band]
        yield Metric(f"speed_up/{band}", MeanRatio(*_values(of_band, share_of_slowest), sign=1), limit)


def _both(pair: Pair) -> tuple[ObservedRequest, ObservedRequest]:
    return pair.candidate, pair.baseline


def _values(pairs: Sequence[Pair], read: _Read) -> tuple[FloatArray, FloatArray]:
    """Of candidate and baseline, where both have one."""
    both = [(read(pair.candidate), read(pair.baseline)) for pair in pairs]
    known = [(ours, theirs) for ours, theirs in both if ours is not None and theirs is not None]
    table = np.array(known, np.float64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def _rise(pairs: Sequence[Pair], is_event: Callable[[ObservedRequest], bool]) -> MeanDifference:
    return MeanDifference(*_values(pairs, lambda request: float(is_event(request))), sign=1)


def _good_by(slo: Slo) -> _Read:
    def is_good(request: ObservedRequest) -> float | None:
        if request.failure:
            return 0.0
        return None if request.ttft_s is None else float(slo.is_kept_by(request))

    return is_good


def _or_never(read: _Read) -> _Read:
    """A failed request takes for ever."""
    return lambda request: np.inf if request.failure else read(request)
