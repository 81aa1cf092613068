"""From observed requests to the losses that a candidate is judged by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pipelines.bench.slo import Slo
from pipelines.canary.analysis.counts import FloatArray
from pipelines.canary.analysis.limits import Limit, Limits
from pipelines.canary.analysis.measures import MeanDifference, MeanRatio, Measure, MedianRatio, Rate
from pipelines.canary.analysis.observed import ObservedRequest, Tokens
from pipelines.canary.analysis.pairing import Pair, pair_up
from pipelines.canary.analysis.quantiles import QuantileRatio
from pipelines.errors import CanaryError

_Read = Callable[[ObservedRequest], float | None]

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
    """

    name: str
    measure: Measure
    limit: Limit
    is_exact: bool = False


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
        Metric("tokens", _tokens(requests, limits), limits.tokens, is_exact=limits.runtime == "exact"),
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
    most = max((_max_draft_len(request) for pair in pairs for request in _both(pair)), default=0)

    def ratio(read: _Read) -> MeanRatio:
        return MeanRatio(*_values(pairs, read), sign=-1)

    yield Metric("acceptance_rate", ratio(_acceptance_rate), limits.acceptance_rate)
    yield Metric("acceptance_length", ratio(_acceptance_length(most)), limits.acceptance_length)
    for position in range(min(most, limits.survival_positions)):
        yield Metric(f"survival/{position + 1}", ratio(_survival(position)), limits.survival)


def _speed_ups(requests: Sequence[ObservedRequest], limits: Limits, slo: Slo) -> Iterator[Metric]:
    def share_of_slowest(request: ObservedRequest) -> float | None:
        if request.failure:
            return 1.0
        if request.e2e_latency_s is None or not request.num_output_tokens:
            return None
        allowed_s = slo.ttft_s + (request.num_output_tokens - 1) * slo.itl_s
        return min(1.0, request.e2e_latency_s / (_SLOWEST * allowed_s))

    pairs = pair_up(requests, "candidate", "control")
    seen = Counter(request.band for request in requests if not request.is_replay)
    for band, limit in limits.speed_up.items():
        if not seen[band] or seen[band] < limits.least_band_share * seen.total():
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


def _max_draft_len(request: ObservedRequest) -> int:
    return len(request.accepted_per_position)


def _acceptance_rate(request: ObservedRequest) -> float | None:
    if not request.total_draft_tokens:
        return None
    return request.total_accepted_draft_tokens / request.total_draft_tokens


def _acceptance_length(most: int) -> _Read:
    """As a share of what is possible."""

    def read(request: ObservedRequest) -> float | None:
        if not request.num_rounds:
            return None
        return (1 + request.total_accepted_draft_tokens / request.num_rounds) / (1 + most)

    return read


def _survival(position: int) -> _Read:
    def read(request: ObservedRequest) -> float | None:
        if not request.num_rounds or position >= _max_draft_len(request):
            return None
        return request.accepted_per_position[position] / request.num_rounds

    return read
