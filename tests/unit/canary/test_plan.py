"""Tests of the strict parser of a rollout's plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelines.canary.controller.plan import DEFAULT, read_plan
from pipelines.canary.judge.limits import read_limits
from pipelines.errors import CanaryError
from pipelines.router.arms import Bands


@pytest.fixture
def document() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(DEFAULT.read_text(encoding="utf-8"))
    return loaded


def written(folder: Path, document: Any) -> Path:
    path = folder / "canary.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def test_the_default_plan_rises_until_the_candidate_has_as_much_to_do_as_the_stable_pair() -> None:
    plan = read_plan()
    last = plan.steps[-1].weight
    stable = 1 - plan.control_weight - last
    assert plan.replayed_share(last) == plan.shadow.share
    assert last + plan.shadow.share * stable == pytest.approx(stable, rel=0.05)
    assert plan.shadow.setting.share == plan.shadow.share
    assert plan.slo.ttft_s == plan.slo_ttft_s


def test_the_default_limits_name_every_load_band_of_the_router() -> None:
    assert {Bands(2, 4).band(num_open) for num_open in (1, 2, 4)} == set(read_limits().speed_up)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"lease_s": 3}, "lease_s=3.0; at least twice tick_s=2"),  # the next look would be too late
        ({"tick_s": 0}, "tick_s=0; greater than 0"),
        ({"watch_s": -1}, "watch_s=-1; greater than or equal to 0"),
        ({"max_pairs": 349}, "max_pairs=349; at least 350"),  # the steps alone need as many
        ({"steps": []}, "weights of the steps must rise; steps: \\[\\]"),
        ({"steps": [{"weight": 0, "min_pairs": 1, "bake_s": 0}]}, "weights of the steps must rise"),
        ({"steps": [{"weight": 0.2, "min_pairs": 1, "bake_s": 0}] * 2}, "weights of the steps must rise"),
        ({"steps": [{"weight": 0.1, "min_pairs": 0, "bake_s": 0}]}, "min_pairs=0"),
        (
            {"steps": [{"weight": 0.96, "min_pairs": 1, "bake_s": 0}]},
            "weights must leave a share for the stable pair; control_weight=0.05, the last step 0.96",
        ),
        (
            {"steps": [{"weight": 0.95, "min_pairs": 1, "bake_s": 0}]},  # with nothing to compare it with
            "weights must leave a share for the stable pair; .*; a sum of at most 0.99; the stable pair",
        ),
        ({"control_weight": -0.1}, "control_weight=-0.1; greater than or equal to 0"),
        ({"bands": {"medium_from": 4, "high_from": 4}}, "bands.high_from=4"),
    ],
)
def test_invalid_values_are_refused(
    change: dict[str, Any], says: str, document: dict[str, Any], tmp_path: Path
) -> None:
    path = written(tmp_path, {**document, **change})
    with pytest.raises(CanaryError, match=says) as caught:
        read_plan(path)
    assert str(path) in caught.value.what
    assert all((caught.value.values, caught.value.limit, caught.value.remedy))
