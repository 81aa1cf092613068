"""Tests of the strict parser of a candidate's limits."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelines.canary.judge.e_values import Side
from pipelines.canary.judge.limits import DEFAULT, Limit, read_limits
from pipelines.canary.judge.metrics import metrics_of
from pipelines.errors import CanaryError
from tests.unit.canary.requests import LIMITS, SLO, request


def written(folder: Path, document: Any) -> Path:
    path = folder / "limits.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


@pytest.fixture
def document() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(DEFAULT.read_text(encoding="utf-8"))
    return loaded


def test_the_default_limits_are_those_of_the_issue() -> None:
    limits = read_limits()
    for limit in (limits.acceptance_rate, limits.acceptance_length, limits.survival, limits.manifest):
        assert limit == Limit(pass_below=0.05, rollback_above=0.15)
    assert limits.speed_up["low"].pass_below == 0.0  # a speed-up above 1
    assert limits.runtime == "exact"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"alfa": 0.1}, "unknown key; alfa; .*; did you mean alpha?"),
        ({"alpha": 0}, "alpha=0; greater than 0"),
        ({"confidence": 1}, "confidence=1; less than 1"),
        ({"confidence": 0.05}, "confidence=0.05"),  # mistaken for alpha: anything would pass
        ({"quantile": 1}, "quantile=1"),
        ({"least_share": 0.34}, "least_share=0.34; less than 0.333333"),
        ({"min_requests": 0}, "min_requests=0; greater than 0"),
        ({"runtime": "fast"}, "runtime='fast'; 'exact' or 'batch_dependent'"),
        ({"errors": {"pass_below": 0.1}}, "a key is missing; errors.rollback_above"),
        ({"ttft": {"pass_below": 10, "rollback_above": 1}}, "ttft.pass_below=10"),
        ({"manifest": {"pass_below": 0.05, "rollback_above": 1}}, "manifest.rollback_above=1"),
        ({"speed_up": {}}, "speed_up={}; Dictionary should have at least 1 item"),
        (
            {"speed_up": {"lo": {"pass_below": 0, "rollback_above": 1}}},
            "speed_up.lo.*'low', 'medium' or 'high'; did you mean low?",
        ),
        ({"speed_up": {"low": {"pass_below": 0, "rollback_above": -1}}}, "speed_up.low.rollback_above=-1"),
    ],
)
def test_invalid_values_are_refused(
    tmp_path: Path, document: dict[str, Any], change: dict[str, Any], says: str
) -> None:
    path = written(tmp_path, {**document, **change})
    with pytest.raises(CanaryError, match=says.replace("?", r"\?").replace("{", r"\{")) as raised:
        read_limits(path)
    assert str(path) in raised.value.what
    assert raised.value.values
    assert raised.value.limit
    assert raised.value.remedy


METRICS = metrics_of([request(0), request(1, "stable"), request(2, "control")], LIMITS, SLO)
RANGES = {metric.name.partition("/")[0]: metric.measure.regression_range for metric in METRICS}


@pytest.mark.parametrize("loss", RANGES)
@pytest.mark.parametrize("which", ["pass_below", "rollback_above"])
def test_no_limit_lies_where_its_loss_cannot(
    tmp_path: Path, document: dict[str, Any], loss: str, which: str
) -> None:
    """Evidence for such a limit would be invalid: after a drop of 1 nothing is left to bet."""
    least, most = RANGES[loss]
    limit = document[loss]["low"] if loss == "speed_up" else document[loss]
    for beyond in (least, most, least - 0.5, most + 0.5, float("nan"), float("inf"), -float("inf"), True):
        limit[which] = beyond
        with pytest.raises(
            CanaryError,
            match=rf"{loss}(\.low)?\.{which}=.*; (greater than|less than|a finite number|a valid number)",
        ) as raised:
            read_limits(written(tmp_path, document))
        assert all((raised.value.what, raised.value.values, raised.value.limit, raised.value.remedy))
    for inside in (0.99 * least + 0.01 * most, 0.01 * least + 0.99 * most):
        limit[which] = inside
        read = getattr(read_limits(written(tmp_path, document)), loss)
        assert getattr(read["low"] if loss == "speed_up" else read, which) == inside


@pytest.mark.parametrize("side", ["above", "below"])
def test_every_limit_that_is_read_gives_evidence(side: Side) -> None:
    for metric in METRICS:
        least, most = metric.measure.regression_range
        for loss in (least + 1e-6, 0.5 * (least + most), most - 1e-6):
            assert not math.isnan(metric.measure.log_evidence(side, loss)), metric.name
