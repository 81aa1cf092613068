"""Tests of the comparison with an earlier run."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.bench.blocks import Blocks, Interval
from pipelines.bench.changes import EVERYWHERE, as_lines, changes, read_earlier
from pipelines.errors import InvalidRequestError, VerificationError


def document(ratios: dict[str, list[tuple[float, float, float]]], **conditions: Any) -> dict[str, Any]:
    """Return a run of three repetitions; arm -> ratio to the target alone in each cell."""
    count = len(next(iter(ratios.values())))
    alone = {"arm": "target alone", "model": "generate_target", "ratio_to_target": None}
    return {
        "format": 2,
        "run_id": "bench-test",
        "max_tokens": 40,
        "repetitions": 3,
        "cells": [
            {
                "prompt_set": "code",
                "load": {"kind": "closed", "num_at_once": index + 1},
                "arms": [
                    alone,
                    *(
                        {"arm": arm, "model": "generate", "ratio_to_target": ratio_to_target(*of_arm[index])}
                        for arm, of_arm in ratios.items()
                    ),
                ],
            }
            for index in range(count)
        ],
        "conditions": {"recipe": "demo", "cpu": "test", "num_cores": 2, "temperature": 0.0, **conditions},
    }


def ratio_to_target(value: float, low: float, high: float) -> dict[str, float]:
    return {"value": value, "low": low, "high": high}


def around(value: float, percent: float = 1.0) -> tuple[float, float, float]:
    return value, value * (1 - percent / 100), value * (1 + percent / 100)


def simulated(num_cells: int, lost: float, rng: np.random.Generator) -> dict[str, Any]:
    """Return a run with noise of 4 % whose arms lost a share of their speed-up of 2."""
    found: dict[str, list[tuple[float, float, float]]] = {"K=4": [], "adaptive": []}
    for _ in range(num_cells):
        speeds = {
            arm: list(speed * np.exp(rng.normal(0, 0.04, 3)))
            for arm, speed in {"alone": 1.0, "K=4": 2 * (1 - lost), "adaptive": 2 * (1 - lost)}.items()
        }
        blocks = Blocks(speeds)
        for arm, of_arm in found.items():
            ratio = blocks.ratio(arm, "alone")
            of_arm.append((ratio.value, ratio.low, ratio.high))
    return document(found)


def test_equal_runs_have_ratio_one_and_no_regression() -> None:
    run = document({"K=4": [around(2.5), around(1.2)], "adaptive": [around(2.6), around(1.3)]})
    compared = changes(run, run)
    assert [(each.cell, each.arm) for each in compared[:3]] == [
        (EVERYWHERE, "K=4"),
        (EVERYWHERE, "adaptive"),
        ("code, 1 concurrent", "K=4"),
    ]
    assert {each.ratio.value for each in compared} == {1.0}
    assert as_lines(compared)[-1] == "0 of 6 ratios are proven below 0.97"


def test_the_interval_joins_those_of_both_runs_and_of_all_comparisons() -> None:
    before, after = document({"K=4": [(2, 2 / 1.03, 2 * 1.03)]}), document({"K=4": [(1, 1 / 1.04, 1.04)]})
    pooled, cell = changes(before, after)
    assert vars(pooled.ratio) == pytest.approx(vars(cell.ratio))
    widening = 6.205347 / 4.302653  # two comparisons: t(2) at 0.9875 and at 0.975
    half = widening * math.hypot(math.log(1.03), math.log(1.04))
    expected = Interval(0.5, 0.5 * math.exp(-half), 0.5 * math.exp(half))
    assert vars(cell.ratio) == pytest.approx(vars(expected))


def test_a_regression_in_one_cell_is_named() -> None:
    before = document({"K=4": [around(2.5), around(1.2)], "adaptive": [around(2.6), around(1.3)]})
    after = document({"K=4": [around(2.5), around(1.2)], "adaptive": [around(2.6), around(1.1)]})
    lost = [each for each in changes(before, after) if each.is_regression]
    assert ("code, 2 concurrent", "adaptive") in [(each.cell, each.arm) for each in lost]
    assert "  REGRESSION: code, 2 concurrent, adaptive: 0.846" in "\n".join(as_lines(lost))
    assert not any(each.is_regression for each in changes(after, before)), "faster is no regression"


def test_less_than_three_percent_is_no_regression() -> None:
    before, after = document({"K=4": [around(2.0, 0.01)]}), document({"K=4": [around(1.96, 0.01)]})
    assert not any(each.is_regression for each in changes(before, after))


def test_noise_is_hardly_ever_a_regression_and_a_tenth_lost_everywhere_is_one() -> None:
    rng = np.random.default_rng(11)

    def num_alarms(lost: float) -> int:
        pairs = [(simulated(20, 0.0, rng), simulated(20, lost, rng)) for _ in range(50)]
        return sum(any(each.is_regression for each in changes(*pair)) for pair in pairs)

    assert num_alarms(0.0) <= 2
    assert num_alarms(0.10) >= 45


@pytest.mark.parametrize(
    ("name", "value"), [("recipe", "other"), ("cpu", "other"), ("num_cores", 4), ("temperature", 0.8)]
)
def test_runs_of_other_things_are_not_compared(name: str, value: Any) -> None:
    ratios = {"K=4": [around(2.0)]}
    with pytest.raises(VerificationError, match=f"{name}: .*, now {value}"):
        changes(document(ratios), document(ratios, **{name: value}))


def test_other_features_of_the_processor_are_named() -> None:
    ratios = {"K=4": [around(2.0)]}
    before, after = (document(ratios, cpu_flags=flags) for flags in (["avx2", "fma"], ["amx_int8", "avx2"]))
    with pytest.raises(VerificationError, match="cpu_flags differ in amx_int8, fma"):
        changes(before, after)


def test_runs_without_common_cells_are_not_compared() -> None:
    with pytest.raises(VerificationError, match="nothing in common"):
        changes(document({"K=4": [around(2.0)]}), document({"K=6": [around(2.0)]}))


def test_only_results_of_this_benchmark_are_read(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    run = document({"K=4": [around(2.0)]})
    path.write_text(json.dumps(run), encoding="utf-8")
    assert read_earlier(path) == run
    for content in ("{", "[]", "{}", json.dumps({**copy.deepcopy(run), "format": 1})):
        path.write_text(content, encoding="utf-8")
        with pytest.raises(InvalidRequestError, match="cannot be read"):
            read_earlier(path)
    with pytest.raises(InvalidRequestError, match="No such file"):
        read_earlier(tmp_path / "absent.json")
