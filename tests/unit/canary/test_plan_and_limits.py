"""Tests of the strict parsers of a rollout's plan and limits."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelines.canary.controller.plan import DEFAULT as PLAN_FILE
from pipelines.canary.controller.plan import read_plan
from pipelines.canary.judge.e_values import Side
from pipelines.canary.judge.limits import DEFAULT as LIMITS_FILE
from pipelines.canary.judge.limits import Limit, Slo, read_limits
from pipelines.canary.judge.metrics import metrics_of
from pipelines.errors import CanaryError
from tests.unit.canary.requests import LIMITS, SLO, request


def changed(folder: Path, default: Path, **changes: Any) -> Path:
    path = folder / "changed.yaml"
    document = yaml.safe_load(default.read_text(encoding="utf-8"))
    path.write_text(yaml.safe_dump({**document, **changes}), encoding="utf-8")
    return path


def step(weight: float, min_pairs: int = 1) -> dict[str, float]:
    return {"weight": weight, "min_pairs": min_pairs, "bake_s": 0}


def test_the_default_plan_rises_until_the_candidate_has_as_much_to_do_as_the_stable_pair() -> None:
    plan = read_plan()
    last = plan.steps[-1].weight
    stable = 1 - last
    assert plan.replayed_share(last) == plan.shadow.share == plan.shadow.setting.share
    assert last + plan.shadow.share * stable == pytest.approx(stable, rel=0.05)
    assert plan.slo.ttft_s == plan.slo_ttft_s


def test_the_default_limits_allow_little_less_acceptance() -> None:
    assert LIMITS.acceptance_rate == Limit(pass_below=0.05, rollback_above=0.15)
    assert LIMITS.runtime == "exact"


PLANS: list[tuple[dict[str, Any], str]] = [
    ({"lease_s": 3}, "lease_s=3 .*; at least twice tick_s=2"),  # the next look would be too late
    ({"tick_s": 0}, "tick_s=0 is out of range: it must be greater than 0"),
    ({"watch_s": -1}, "watch_s=-1 is out of range: it must be greater than or equal to 0"),
    ({"max_pairs": 349}, "max_pairs=349 .*; at least 350"),  # the steps alone need as many
    ({"steps": []}, r"weights of the steps must rise .*: \[\]"),
    ({"steps": [step(0)]}, "weights of the steps must rise"),
    ({"steps": [step(0.2)] * 2}, "weights of the steps must rise"),
    ({"steps": [step(0.1, 0)]}, "min_pairs=0"),
    # with nothing to compare it with
    ({"steps": [step(1)]}, "the last step's weight 1.0 .*; at most 0.99"),
    ({"bands": {"medium_from": 4, "high_from": 4}}, "bands.high_from=4"),
]
LIMITS_: list[tuple[dict[str, Any], str]] = [
    ({"alfa": 0.1}, r"alfa is unknown; .*; did you mean alpha\?"),
    ({"alpha": 0}, "alpha=0 is out of range: it must be greater than 0"),
    ({"confidence": 1}, "confidence=1 is out of range: it must be less than 1"),
    ({"confidence": 0.05}, "confidence=0.05"),  # mistaken for alpha: anything would pass
    ({"quantile": 1}, "quantile=1"),
    ({"min_requests": 0}, "min_requests=0 is out of range: it must be greater than 0"),
    (
        {"runtime": "fast"},
        "runtime='fast' is not one of the choices: it must be 'exact' or 'batch_dependent'",
    ),
    ({"errors": {"pass_below": 0.1}}, "errors.rollback_above is missing"),
    ({"speed_up": None}, "speed_up is unknown"),
]


@pytest.mark.parametrize(
    ("read", "default", "change", "says"),
    [
        *((read_plan, PLAN_FILE, *each) for each in PLANS),
        *((read_limits, LIMITS_FILE, *each) for each in LIMITS_),
    ],
)
def test_invalid_values_are_refused(
    read: Callable[[Path], Any], default: Path, change: dict[str, Any], says: str, tmp_path: Path
) -> None:
    path = changed(tmp_path, default, **change)
    with pytest.raises(CanaryError, match=says) as caught:
        read(path)
    assert caught.value.message.startswith(f"{path}: ") and caught.value.remedy


METRICS = metrics_of([request(0), request(1, "stable")], LIMITS, SLO)
RANGES = {metric.name.partition("/")[0]: metric.measure.regression_range for metric in METRICS}


@pytest.mark.parametrize("metric", RANGES)
@pytest.mark.parametrize("which", ["pass_below", "rollback_above"])
def test_no_limit_lies_where_its_regression_cannot(metric: str, which: str, tmp_path: Path) -> None:
    """Evidence for such a limit would be invalid: after a drop of 1 nothing is left to bet."""
    limit = yaml.safe_load(LIMITS_FILE.read_text(encoding="utf-8"))[metric]
    least, most = RANGES[metric]
    refused = rf"{metric}\.{which}=.*: it must be (greater than|less than|a finite number|a valid number)"
    for beyond in (least, most, least - 0.5, most + 0.5, float("nan"), float("inf"), -float("inf"), True):
        limit[which] = beyond
        with pytest.raises(CanaryError, match=refused):
            read_limits(changed(tmp_path, LIMITS_FILE, **{metric: limit}))
    for inside in (0.99 * least + 0.01 * most, 0.01 * least + 0.99 * most):
        limit[which] = inside
        read = getattr(read_limits(changed(tmp_path, LIMITS_FILE, **{metric: limit})), metric)
        assert getattr(read, which) == inside


@pytest.mark.parametrize("side", ["above", "below"])
def test_every_limit_that_is_read_gives_evidence(side: Side) -> None:
    for metric in METRICS:
        least, most = metric.measure.regression_range
        for regression in (least + 1e-6, 0.5 * (least + most), most - 1e-6):
            assert not math.isnan(metric.measure.log_evidence(side, regression)), metric.name


def test_good_requests_keep_both_limits() -> None:
    slo = Slo(ttft_s=1.0, itl_s=0.5)
    assert slo.is_kept_by(1.0, 0.5)  # at the limits
    assert not slo.is_kept_by(1.01, 0.5)
    assert not slo.is_kept_by(1.0, 0.51)
    assert slo.is_kept_by(0.9, None)  # one token: there is no ITL
    assert not slo.is_kept_by(None, None)
