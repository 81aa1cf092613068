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
        ({"zzz": 1}, "unknown key; zzz; .*; remove it"),
        ({"alpha": 0}, "alpha=0; greater than 0"),
        ({"alpha": True}, "alpha=True"),
        ({"confidence": 1}, "confidence=1; less than 1"),
        ({"confidence": 0.05}, "confidence=0.05"),  # mistaken for alpha: anything would pass
        ({"quantile": 1}, "quantile=1"),
        ({"least_share": 0.34}, "least_share=0.34; less than 0.333333"),
        ({"quantile": float("inf")}, "quantile=inf"),
        ({"survival_positions": 0}, "survival_positions=0"),
        ({"min_requests": 0}, "min_requests=0; greater than 0"),
        ({"min_requests": 2.5}, "min_requests=2.5"),
        ({"runtime": "fast"}, "runtime='fast'; 'exact' or 'batch_dependent'"),
        ({"errors": 0.01}, "a section is not a mapping; errors=0.01"),
        ({"errors": {"pass_below": 0.1}}, "a key is missing; errors.rollback_above"),
        ({"errors": {"pass_below": 0.1, "rollback_abov": 1}}, "did you mean errors.rollback_above?"),
        (
            {"ttft": {"pass_below": "0.1", "rollback_above": 1}},
            "ttft.pass_below='0.1'; a valid number",
        ),
        ({"ttft": {"pass_below": 10, "rollback_above": 1}}, "ttft.pass_below=10"),
        ({"ttft": {"pass_below": float("nan"), "rollback_above": 1}}, "ttft.pass_below=nan"),
        ({"manifest": {"pass_below": 0.05, "rollback_above": 1}}, "manifest.rollback_above=1"),
        ({"speed_up": {}}, "speed_up={}; Dictionary should have at least 1 item"),
        ({"speed_up": {1: {}}}, "speed_up.1.pass_below"),
        (
            {"speed_up": {"lo": {"pass_below": 0, "rollback_above": 1}}},
            "speed_up.lo.*'low', 'medium' or 'high'; did you mean low?",
        ),
        ({"speed_up": {"low": {"pass_below": 0}}}, "speed_up.low.rollback_above"),
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


def test_a_missing_key_and_a_file_that_is_none_are_refused(tmp_path: Path, document: dict[str, Any]) -> None:
    del document["itl"]
    with pytest.raises(CanaryError, match="a key is missing; itl"):
        read_limits(written(tmp_path, document))
    with pytest.raises(CanaryError, match="cannot be read"):
        read_limits(tmp_path / "absent.yaml")
    (tmp_path / "limits.yaml").write_text("{", encoding="utf-8")
    with pytest.raises(CanaryError, match="cannot be read"):
        read_limits(tmp_path / "limits.yaml")
    (tmp_path / "limits.yaml").write_bytes(b"\xff\xfe")
    with pytest.raises(CanaryError, match="cannot be read"):
        read_limits(tmp_path / "limits.yaml")
    with pytest.raises(CanaryError, match="the document=None"):
        read_limits(written(tmp_path, None))
