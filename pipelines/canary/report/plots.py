"""Plots of the report of a rollout."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from pipelines.bench.reporting.chart import Chart, Labels, Point, Series, bar_chart, line_chart
from pipelines.canary.judge.matched_rounds import Counts, matched_rounds
from pipelines.canary.judge.observed import ObservedRequest
from pipelines.canary.judge.pairing import pair_up
from pipelines.canary.judge.sequences import Bounds
from pipelines.canary.judge.verdict import Judged
from pipelines.canary.report.record import RolloutRecord
from pipelines.router.arms import Arm

ARMS: tuple[Arm, ...] = ("stable", "candidate", "control")

_MOST_POINTS = 200  # per curve; more cannot be distinguished
_NUM_TICKS = 5
_LEAST_MS = 0.01  # smallest value on the logarithmic axis, for tokens that arrived together
_TIMES: tuple[tuple[str, Callable[[ObservedRequest], float | None]], ...] = (
    ("Time to first token", lambda request: request.ttft_s),
    ("Time per output token", lambda request: request.itl_s),
    ("End-to-end latency", lambda request: request.e2e_latency_s),
)


def charts_of(record: RolloutRecord) -> list[Chart]:
    """Plot weights, acceptance and times, as far as they are known."""
    return [*_weights(record), *_acceptance(record), *_latencies(record)]


def evidence_chart(judged: Judged, seen: Sequence[Bounds]) -> Chart:
    """Plot a confidence sequence with its limits.

    Args:
        judged: Verdict on the metric.
        seen: Bounds at one or more times, each with an estimate.
    """
    limit, is_exact = judged.metric.limit, judged.metric.is_exact
    rules = [100 * limit.pass_below] + ([] if is_exact else [100 * limit.rollback_above])
    words = f"passes below {limit.pass_below:+.1%}, fails " + (
        "at the first event" if is_exact else f"above {limit.rollback_above:+.1%}"
    )
    points = [
        Point(bounds.num, *(100 * value for value in (bounds.estimate, bounds.low, bounds.high)))
        for bounds in seen
        if bounds.estimate is not None
    ]
    # Scale the axis to the later bounds, because the first ones are very wide.
    shown = [*rules, *(point.y for point in points[len(points) // 2 :])]
    margin = max(2.0, 0.5 * (max(shown) - min(shown)))
    return line_chart(
        Labels(
            f"{judged.metric.name}: {words}",
            "trials so far",
            f"regression in %, {judged.limits.confidence:.0%} bounds",
        ),
        [Series("observed", 1, tuple(points))],
        _ticks(points[0].x, points[-1].x),
        rules=rules,
        is_log_x=True,
        y_range=(min(shown) - margin, max(shown) + margin),
    )


def acceptance_by_position(requests: Sequence[ObservedRequest], arm: Arm) -> tuple[float, ...]:
    """Compute the share of an arm's rounds that accepted each position, of those that drafted it.

    Arms under different loads differ in it even with equal pairs; see ``matched_by_position``.
    """
    own = [each for each in requests if each.arm == arm]
    drafted = np.array([num for each in own for num in each.drafted_per_round], np.int64)
    accepted = np.array([num for each in own for num in each.accepted_per_round], np.int64)
    return _survival(drafted, accepted)


def matched_by_position(requests: Sequence[ObservedRequest]) -> dict[Arm, tuple[float, ...]]:
    """Compute the same for candidate and stable pair in matched rounds."""
    rounds = matched_rounds(pair_up(requests, "candidate", "stable"))
    return {
        "stable": _survival(rounds.depth, rounds.by_baseline),
        "candidate": _survival(rounds.depth, rounds.by_candidate),
    }


def _survival(drafted: Counts, accepted: Counts) -> tuple[float, ...]:
    """Compute the share that accepted each position, from drafted and accepted tokens per round."""
    most = int(drafted.max(initial=0))
    return tuple(float((accepted > position).sum() / (drafted > position).sum()) for position in range(most))


def _weights(record: RolloutRecord) -> Iterator[Chart]:
    if not record.transitions:
        return
    last_s = max([record.transitions[-1].at_s, *(request.arrived_at_s for request in record.requests)])
    series = []
    for color, arm in enumerate(ARMS):
        corners: list[tuple[float, float]] = []
        for transition in record.transitions:
            corners += [(transition.at_s, corners[-1][1])] if corners else []
            corners.append((transition.at_s, transition.weights.get(arm, 0.0)))
        corners.append((last_s, corners[-1][1]))
        minutes = [((at_s - record.began_at_s) / 60, weight) for at_s, weight in corners]
        series.append(Series(arm, color, tuple(Point(x, y, y, y) for x, y in minutes)))
    yield line_chart(
        Labels("Weights", "minutes since the rollout began", "share of requests"),
        series,
        _ticks(0.0, (last_s - record.began_at_s) / 60, is_log=False),
        has_marks=False,
        y_range=(0.0, 1.0),
    )


def _acceptance(record: RolloutRecord) -> Iterator[Chart]:
    matched = matched_by_position(record.requests)
    by_arm = {arm: acceptance_by_position(record.requests, arm) for arm in ARMS}
    for title, shares in (
        ("Acceptance by draft position, replays and their originals", matched),
        ("Acceptance by draft position, all requests", by_arm),
    ):
        bars = [(arm, ARMS.index(arm), found) for arm, found in shares.items() if found]
        if bars:
            labels = Labels(title, "draft position", "share of the rounds that drafted it")
            yield bar_chart(labels, bars, first=1)


def _latencies(record: RolloutRecord) -> Iterator[Chart]:
    for title, read in _TIMES:
        series = []
        for color, arm in enumerate(ARMS):
            asked = [each for each in record.requests if each.arm == arm and not each.is_replay]
            times_s = [value for each in asked if (value := read(each)) is not None]
            known = sorted(max(_LEAST_MS, 1000 * time_s) for time_s in times_s)
            if not known:
                continue
            num = len(known) + sum(bool(each.failure) for each in asked)
            ranks = sorted(
                {math.ceil(len(known) * (place + 1) / _MOST_POINTS) for place in range(_MOST_POINTS)}
            )
            corners = [(known[0], 0.0), *((known[rank - 1], rank / num) for rank in ranks)]
            series.append(Series(arm, color, tuple(Point(x, y, y, y) for x, y in corners)))
        if series:
            values = [point.x for each in series for point in each.points]
            yield line_chart(
                Labels(title, "milliseconds", "share of requests answered by then"),
                series,
                _ticks(min(values), max(values)),
                is_log_x=True,
                has_marks=False,
                y_range=(0.0, 1.0),
            )


def _ticks(first: float, last: float, is_log: bool = True) -> list[float]:
    """Return round values from the first to the last, including both."""
    if first == last:
        return [first]
    parts = [place / (_NUM_TICKS - 1) for place in range(1, _NUM_TICKS - 1)]
    inner = [first * (last / first) ** part if is_log else first + (last - first) * part for part in parts]
    return [first, *(float(f"{value:.2g}") for value in inner), last]
