"""Answers and cells for tests of the bench, where nothing is timed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pipelines.bench.figures import CellFigures, figures_of
from pipelines.bench.measuring import Measurement
from pipelines.bench.plan import TARGET_ALONE, Arm, Cell, Plan, arms_with
from pipelines.bench.prompt_sets import PromptSet
from pipelines.client import CompletionRequest, Generation

REQUESTS = tuple(CompletionRequest(f"text {index}") for index in range(32))
CODE = PromptSet("code", REQUESTS)
ODD = PromptSet("adversarial", REQUESTS)
K2, K4 = Arm("generate", 2), Arm("generate", 4)
ARMS = arms_with((2, 4))


def answer(num_tokens: int = 5, ttft: float | None = 1.0, e2e: float = 3.0, **changes: Any) -> Generation:
    """Return an answer; its ITL is (3 - 1) / 4 = 0.5 s unless changed."""
    ids = tuple(range(num_tokens))
    return replace(Generation("", ids, (), "length", 0, 0, 0, (), ttft, e2e), **changes)


def measured(cell: Cell, arm: Arm, repetition: int, wall_s: float, *given: Generation) -> Measurement:
    return Measurement(cell, arm, repetition, given or (answer(), answer()), wall_s)


def plan(**changes: Any) -> Plan:
    return replace(Plan((CODE,), (1, 2), (2, 4), 8, 3), **changes)


def cells_with_ratios(ratios: dict[int, dict[Arm, float]], noise: float = 0.0) -> list[CellFigures]:
    """Return cells of ``code``.

    Args:
        ratios: Concurrent requests -> arm -> speed relative to the target alone.
        noise: The second of three repetitions is faster by this share, for the adaptive arm only.
    """
    measurements = []
    for value, of_arms in ratios.items():
        cell = Cell(CODE, value)
        for arm in ARMS:
            for repetition in range(3):
                faster = 1 + noise * (repetition == 1 and arm == ARMS[-1])
                ratio = 1.0 if arm == TARGET_ALONE else of_arms[arm] * faster
                timed = answer(e2e=3.0 / ratio, ttft=1.0 / ratio)
                measurements.append(measured(cell, arm, repetition, 1.0 / ratio, timed, timed))
    return figures_of(measurements, ARMS)
