"""Tests of what a calibration says while it works, and of the time that it takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipelines.bench.calibration import acceptance, step_costs
from pipelines.bench.calibration.__main__ import load_executors
from pipelines.bench.calibration.baseline import fitting_tokens
from pipelines.bench.calibration.step_costs import measure_step_costs
from pipelines.speculation.draft_length.calibration import Calibration
from tests.support.tiny_engines import TIMED_CONFIG, TINY_CALIBRATION, build_tiny_pair


class CountingEngine:
    """Counts its steps; each takes no time."""

    def __init__(self) -> None:
        self.steps = 0
        self.config = TIMED_CONFIG

    def step(self, inputs: Any) -> None:
        self.steps += 1


@pytest.mark.parametrize(("budget_s", "passes"), [(1e9, step_costs._PASSES), (1e-9, 1)])
def test_slow_engines_are_timed_in_fewer_passes(
    budget_s: float, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_costs, "_BUDGET_S", budget_s)
    monkeypatch.setattr(step_costs, "has_enough_quiet", lambda steps: True)
    monkeypatch.setattr(step_costs, "quiet_seconds", lambda steps: 1.0)
    draft, target = CountingEngine(), CountingEngine()
    measure_step_costs(draft, target, max_rows=3)  # type: ignore[arg-type]
    shapes = 6  # 1, 2 and 3 rows, 9 after a short and after a long context, 1 after a long one
    assert draft.steps == target.steps == shapes * (1 + passes * (1 + step_costs._REPETITIONS))


@pytest.mark.parametrize(
    ("linear", "between"), [("openvino", (5, 9, 16, 32, 64, 65)), ("draftproof", (4, 6, 7, 9, 16, 32))]
)
def test_the_turning_points_of_products_are_timed(
    linear: str, between: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_costs, "has_enough_quiet", lambda steps: True)
    monkeypatch.setattr(step_costs, "quiet_seconds", lambda steps: 1.0)
    draft, target = CountingEngine(), CountingEngine()
    for engine in (draft, target):
        engine.config = SimpleNamespace(**{**vars(TIMED_CONFIG), "linear": linear})
    costs = measure_step_costs(draft, target, max_rows=144)  # type: ignore[arg-type]
    assert costs.target.rows == costs.draft.rows == (1, 2, *between, 144)


@pytest.mark.parametrize(
    ("budget_s", "most_steps"), [(0.0, 30), pytest.param(1e9, 1000, marks=pytest.mark.long)]
)
def test_answers_that_take_too_long_are_left_unfinished(
    budget_s: float, most_steps: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(acceptance, "_BUDGET_S", budget_s or 1e-9)
    draft, target = load_executors(*build_tiny_pair(tmp_path, draft="random"))
    prompts = [np.arange(first, first + 20, dtype=np.int32) for first in (1, 300)]
    acceptance.measure_acceptance(draft, target, prompts)
    assert most_steps / 10 < target.num_steps < most_steps
    assert not draft.has_work and not target.has_work
    assert target.counts.num_free_blocks == target.counts.num_blocks


def test_the_answers_of_a_baseline_are_as_long_as_its_time_allows() -> None:
    assert fitting_tokens(TINY_CALIBRATION, 16) == 64

    def slower(factor: float, rate: float) -> Calibration:
        target = TINY_CALIBRATION.target
        costs = replace(target, seconds=tuple(factor * seconds for seconds in target.seconds))
        rates = (rate,) * len(TINY_CALIBRATION.acceptance_rates)
        return replace(TINY_CALIBRATION, target=costs, acceptance_rates=rates)

    assert fitting_tokens(slower(1000, 0.0), 16) == 8
    assert 8 < fitting_tokens(slower(20, 0.0), 16) < fitting_tokens(slower(20, 0.7), 16) < 64
