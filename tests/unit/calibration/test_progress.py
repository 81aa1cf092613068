"""Tests of what a calibration says while it works, and of the time that it takes."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.bench.calibration import step_costs
from pipelines.bench.calibration.acceptance import fitting_tokens
from pipelines.bench.calibration.step_costs import PairCosts, measure_step_costs
from tests.support.tiny_engines import TIMED_CONFIG, TINY_CALIBRATION


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


def test_answers_are_as_long_as_their_time_allows() -> None:
    known = PairCosts(TINY_CALIBRATION.draft, TINY_CALIBRATION.target, None)
    assert fitting_tokens(known, 16) == 64

    def slower(factor: float) -> PairCosts:
        seconds = tuple(factor * seconds for seconds in known.target.seconds)
        return replace(known, target=replace(known.target, seconds=seconds))

    assert fitting_tokens(slower(1000), 16) == 8
    assert 8 < fitting_tokens(slower(20), 16) < 64
