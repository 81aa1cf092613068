"""What Kayenta asks its remote judge, read from JSON.

Source: spinnaker/kayenta at a69573b (2025-04-08): RemoteJudgeRequest, CanaryConfig, MetricSetPair, and the
names that NetflixACAJudge reads from a metric's ``analysisConfigurations``. Fields that no verdict rests on
are passed over, as Kayenta does with ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np

from pipelines.canary.analysis.counts import FloatArray
from pipelines.canary.analysis.limits import Limit
from pipelines.errors import InvalidRequestError

_MOST_RATIO = 10.0  # as ``MedianRatio.losses``
_NO_VALUE = (None, "NaN")  # Jackson writes a NaN as text


@dataclass(frozen=True)
class MetricConfig:
    """How one metric is to be judged.

    Attributes:
        groups: That it counts for.
        rise: What the ratio to the baseline may exceed 1 by; None if a rise is no loss.
        fall: What the ratio of the baseline to it may exceed 1 by; None if a fall is no loss.
        is_critical: Shown again in the result; any loss fails here.
        is_muted: Judged, but counts for nothing.
        must_have_data: Whether it fails without a value.
    """

    groups: tuple[str, ...]
    rise: Limit | None
    fall: Limit | None
    is_critical: bool
    is_muted: bool
    must_have_data: bool


@dataclass(frozen=True)
class SeriesPair:
    """One metric of canary and baseline.

    Attributes:
        name: Of the metric.
        id: Kayenta's name for the pair.
        tags: Kayenta's.
        experiment: float64 [n], of the canary; without the points at which either has no value.
        control: float64 [n], of the baseline at the same points in time.
        config: How it is to be judged.
    """

    name: str
    id: str
    tags: dict[str, str]
    experiment: FloatArray
    control: FloatArray
    config: MetricConfig


@dataclass(frozen=True)
class JudgeRequest:
    """All of it.

    Attributes:
        pairs: One or more.
        pass_score: Least score that passes, 0 to 100.
        marginal_score: Least score that does not fail, at most ``pass_score``.
    """

    pairs: tuple[SeriesPair, ...]
    pass_score: float
    marginal_score: float


def read_request(document: Any, default: Limit) -> JudgeRequest:
    """Read a request.

    Args:
        document: From JSON.
        default: What may be lost where a metric has no ``effectSize``.

    Raises:
        InvalidRequestError: It is not of Kayenta's form, or asks for what this judge cannot do.
    """
    thresholds = _take(document, "scoreThresholds", dict, "the request")
    pass_score = _number(thresholds, "pass", "scoreThresholds", 0.0, 100.0)
    marginal_score = _number(thresholds, "marginal", "scoreThresholds", 0.0, pass_score)
    configured = _take(document, "canaryConfig", dict, "the request")
    metrics = _take(configured, "metrics", list, "canaryConfig")
    configs = {_take(metric, "name", str, "metrics"): _config(metric, default) for metric in metrics}
    replacing = {metric["name"] for metric in metrics if _analysis(metric).get("nanStrategy") == "replace"}
    pairs = []
    for series in _take(document, "metricSetPairList", list, "the request"):
        name = _take(series, "name", str, "metricSetPairList")
        if name not in configs:
            raise _refuse(f"metricSetPairList: {name}", "a metric of canaryConfig")
        pairs.append(_pair(series, configs[name], 0.0 if name in replacing else math.nan))
    if not pairs:
        raise _refuse("metricSetPairList=[]", "one pair of series at least")
    return JudgeRequest(tuple(pairs), pass_score, marginal_score)


def _pair(series: dict[str, Any], config: MetricConfig, missing: float) -> SeriesPair:
    values = _take(series, "values", dict, series["name"])
    experiment, control = (
        [_value(each, series["name"], missing) for each in _take(values, scope, list, series["name"])]
        for scope in ("experiment", "control")
    )
    both = np.array(list(zip_longest(experiment, control, fillvalue=missing)), np.float64).reshape(-1, 2)
    known = both[~np.isnan(both).any(axis=1)]
    tags = _take(series, "tags", dict, series["name"], {})
    return SeriesPair(series["name"], str(series.get("id", "")), tags, known[:, 0], known[:, 1], config)


def _value(raw: Any, name: str, missing: float) -> float:
    if raw in _NO_VALUE or (isinstance(raw, float) and math.isnan(raw)):
        return missing
    if type(raw) not in (int, float) or not 0 <= raw < math.inf:
        raise _refuse(f"{name}: {raw!r}", "values that are 0 at least, or NaN")
    return float(raw)


def _config(metric: Any, default: Limit) -> MetricConfig:
    analysis = _analysis(metric)
    direction = analysis.get("direction", "either")
    if direction not in ("increase", "decrease", "either"):
        raise _refuse(f"{metric['name']}: direction={direction!r}", "increase, decrease or either")
    effect = _take(analysis, "effectSize", dict, metric["name"], {})
    if effect.get("measure", "meanRatio") != "meanRatio":
        raise _refuse(
            f"{metric['name']}: measure={effect['measure']!r}", "effect sizes that are ratios: meanRatio"
        )
    rise = fall = default
    if "allowedIncrease" in effect:
        ratio = _number(effect, "allowedIncrease", metric["name"], 1.0, _MOST_RATIO)
        rise = Limit(ratio - 1, ratio - 1)
    if "allowedDecrease" in effect:
        ratio = _number(effect, "allowedDecrease", metric["name"], 1 / _MOST_RATIO, 1.0)
        fall = Limit(1 / ratio - 1, 1 / ratio - 1)
    return MetricConfig(
        tuple(_take(metric, "groups", list, metric["name"], [])),
        None if direction == "decrease" else rise,
        None if direction == "increase" else fall,
        analysis.get("critical") is True,
        analysis.get("muted") is True,
        analysis.get("mustHaveData") is True,
    )


def _analysis(metric: dict[str, Any]) -> dict[str, Any]:
    configurations = _take(metric, "analysisConfigurations", dict, metric["name"], {})
    found: dict[str, Any] = _take(configurations, "canary", dict, metric["name"], {})
    return found


def _number(section: dict[str, Any], key: str, where: str, least: float, most: float) -> float:
    value: Any = section.get(key)
    if type(value) not in (int, float) or not least <= value <= most:
        raise _refuse(f"{where}: {key}={value!r}", f"a number from {least:g} to {most:g}")
    return float(value)


def _take(section: Any, key: str, kind: type, where: str, default: Any = None) -> Any:
    value = section.get(key, default) if isinstance(section, dict) else None
    if not isinstance(value, kind):
        raise _refuse(f"{where}: {key}={value!r:.80}", f"{key} of type {kind.__name__}")
    return value


def _refuse(values: str, limit: str) -> InvalidRequestError:
    return InvalidRequestError(
        "a request to the judge cannot be judged",
        values=values,
        limit=limit,
        remedy="correct the canary config",
    )
