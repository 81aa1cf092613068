"""A remote judge for Kayenta: the series of a canary and of its baseline, by the same kind of evidence.

Values of one point in time are a pair, and the loss is the median of their ratios less 1. A metric without
a verdict is ``Nodata``, and the whole then ``Marginal``, with a score between both thresholds. Group weights
are not used: what is lost in one metric is not made good by another.

Source: spinnaker/kayenta at a69573b (2025-04-08): CanaryJudgeResult, CanaryAnalysisResult,
CanaryJudgeGroupScore, CanaryJudgeScore, and the labels that NetflixACAJudge gives.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from pipelines.canary.analysis.counts import FloatArray
from pipelines.canary.analysis.limits import Limit, Limits, read_limits
from pipelines.canary.analysis.measures import MedianRatio
from pipelines.canary.analysis.metrics import Metric
from pipelines.canary.analysis.verdict import Judged, judge
from pipelines.canary.gates.kayenta_request import JudgeRequest, SeriesPair, read_request

JUDGE_NAME = "Draftproof"

MIN_POINTS = 12  # a point stands for many requests, so fewer are asked for than of single ones

_Side = Literal["High", "Low"]
_Label = Literal[_Side, "Pass", "Nodata", "NodataFailMetric"]
_LOST = ("High", "Low", "NodataFailMetric")


@dataclass(frozen=True)
class _Result:
    """What came of one metric."""

    series: SeriesPair
    label: _Label
    reason: str


def judge_series(document: Any) -> dict[str, Any]:
    """Answer a request of Kayenta's.

    Args:
        document: The request, from JSON.

    Returns:
        A CanaryJudgeResult, ready for JSON.

    Raises:
        InvalidRequestError: As ``read_request``.
    """
    limits = replace(read_limits(), min_requests=MIN_POINTS)
    request = read_request(document, limits.ttft)
    # A muted metric must not make the others' evidence count for less.
    results = [
        result
        for is_muted in (False, True)
        for result in _judged([each for each in request.pairs if each.config.is_muted == is_muted], limits)
    ]
    return _document(results, request)


def _judged(pairs: Sequence[SeriesPair], limits: Limits) -> Iterator[_Result]:
    """Each with its label; together, for ``fail`` is corrected for their number."""
    losses = [(place, *loss) for place, series in enumerate(pairs) for loss in _losses(series)]
    judged = judge(
        [Metric(f"{place}/{side}", measure, limit) for place, side, measure, limit in losses], limits
    ).judged
    for place, series in enumerate(pairs):
        own = [(loss[1], each) for loss, each in zip(losses, judged, strict=True) if loss[0] == place]
        yield _labelled(series, own)


def _losses(series: SeriesPair) -> Iterator[tuple[_Side, MedianRatio, Limit]]:
    is_nothing = (series.experiment == 0) & (series.control == 0)  # twice nothing is as much: the ratio is 1
    experiment, control = (
        np.where(is_nothing, 1.0, values) for values in (series.experiment, series.control)
    )
    if series.config.rise is not None:
        yield "High", MedianRatio(experiment, control), series.config.rise
    if series.config.fall is not None:
        yield "Low", MedianRatio(control, experiment), series.config.fall


def _labelled(series: SeriesPair, judged: Sequence[tuple[_Side, Judged]]) -> _Result:
    if not len(series.control):
        label: _Label = "NodataFailMetric" if series.config.must_have_data else "Nodata"
        return _Result(series, label, "there is no point in time at which both have a value")
    for side, each in judged:
        if each.verdict == "fail":
            return _Result(series, side, f"{_seen(series)}, which is too {side.lower()}")
    if all(each.verdict == "pass" for _, each in judged):
        return _Result(series, "Pass", _seen(series))
    needed = [each.still_needed for _, each in judged]
    known = [number for number in needed if number is not None]
    more = f"about {max(known)} more" if len(known) == len(needed) else "no number of points"
    return _Result(series, "Nodata", f"{_seen(series)}; {more} would decide")


def _seen(series: SeriesPair) -> str:
    ratio = _ratio(series)
    known = "no ratio" if ratio is None else f"{ratio:.3g} times the baseline"
    return f"{known} in the median of {len(series.control)} points"


def _ratio(series: SeriesPair) -> float | None:
    estimate = MedianRatio(series.experiment, series.control).estimate
    return 1 + estimate if estimate is not None and math.isfinite(estimate) else None


def _document(results: Sequence[_Result], request: JudgeRequest) -> dict[str, Any]:
    counted = [each for each in results if not each.series.config.is_muted]
    by_group: dict[str, list[_Result]] = {}
    for each in counted:
        for group in each.series.config.groups:
            by_group.setdefault(group, []).append(each)
    lost = ", ".join(each.series.name for each in counted if each.label in _LOST)
    undecided = ", ".join(each.series.name for each in counted if each.label == "Nodata")
    reason = f"lost: {lost}" if lost else f"no verdict on {undecided}" if undecided else "no loss"
    return {
        "judgeName": JUDGE_NAME,
        "results": [_result_document(each) for each in results],
        "groupScores": [{"name": name, **_score(of, request)} for name, of in by_group.items()],
        "score": {**_score(counted, request), "classificationReason": reason},
    }


def _score(results: Sequence[_Result], request: JudgeRequest) -> dict[str, Any]:
    """A number that Kayenta's thresholds make the same word of."""
    labels = {each.label for each in results}
    if labels & set(_LOST):
        return {"score": 0.0, "classification": "Fail"}
    if labels == {"Pass"}:
        return {"score": 100.0, "classification": "Pass"}
    return {"score": (request.marginal_score + request.pass_score) / 2, "classification": "Marginal"}


def _result_document(each: _Result) -> dict[str, Any]:
    series, config = each.series, each.series.config
    ratio = _ratio(series)
    return {
        "name": series.name,
        "id": series.id,
        "tags": series.tags,
        "classification": each.label,
        "classificationReason": each.reason,
        "groups": list(config.groups),
        "experimentMetadata": {"stats": _stats(series.experiment)},
        "controlMetadata": {"stats": _stats(series.control)},
        "resultMetadata": {} if ratio is None else {"ratio": ratio},
        "critical": config.is_critical and each.label in _LOST,
        "muted": config.is_muted,
    }


def _stats(values: FloatArray) -> dict[str, float]:
    if not len(values):
        return {"count": 0}
    return {
        "count": len(values),
        "mean": float(values.mean()),
        "median": float(np.median(values)),
        "min": float(values.min()),
        "max": float(values.max()),
    }
