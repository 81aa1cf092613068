"""Tests of what the cost model learns from steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipelines.executor.rows import RowSteps
from pipelines.executor.step import Chunk
from pipelines.speculation.draft_length.step_costs import StepCosts

ENGINE_S = 0.012


def steps(num_requests: int, *, verifies: bool = False, num_adapted: int = 0, count: int = 1) -> RowSteps:
    chunk = Chunk(np.ones(1, np.int32), 0, (1,), as_rows=True, num_logits=1)
    item: Any = SimpleNamespace(chunk=chunk, sequence=SimpleNamespace(is_verification=verifies))
    return RowSteps([item] * num_requests, 9, count, ENGINE_S * count, num_adapted)


@pytest.fixture
def costs() -> StepCosts:
    return StepCosts((2, 9, 16), (0.010, ENGINE_S, 0.020))


def test_the_time_around_verifications_does_not_make_the_target_alone_look_slow(costs: StepCosts) -> None:
    for _ in range(300):
        steps(4, verifies=False).teach(costs, ENGINE_S + 0.001, is_first=False)
        steps(4, verifies=True).teach(costs, ENGINE_S + 0.005, is_first=False)
    assert costs.overhead.extra_s(4, "fixed") == pytest.approx(0.004, rel=0.03)
    assert costs.overhead.extra_s(4) == 0, "the lengths are not adapted"
    assert float(costs.seconds(9)) == pytest.approx(ENGINE_S + 0.001, rel=0.01)


def test_requests_that_drafted_in_vain_count_for_speculation(costs: StepCosts) -> None:
    for _ in range(300):
        costs.overhead.num_adapted = 0
        steps(4).teach(costs, ENGINE_S + 0.001, is_first=False)
        costs.overhead.num_adapted = 4
        steps(4, num_adapted=4).teach(costs, ENGINE_S + 0.005, is_first=False)
    assert costs.overhead.extra_s(4) == pytest.approx(0.004, rel=0.03)
    assert float(costs.seconds(9)) == pytest.approx(ENGINE_S + 0.001, rel=0.01)


def test_requests_of_the_target_alone_do_not_count_for_speculation(costs: StepCosts) -> None:
    steps(4).teach(costs, ENGINE_S + 0.001, is_first=False)
    costs.overhead.num_adapted = 1
    for _ in range(300):
        steps(4, num_adapted=1).teach(costs, ENGINE_S + 0.005, is_first=False)
    assert costs.overhead.extra_s(4) == 0


def test_a_step_before_speculation_begins_or_ends_teaches_nothing(costs: StepCosts) -> None:
    """The next round, whose work follows it, is of another kind."""
    before = float(costs.seconds(9))
    costs.overhead.num_adapted = 4
    steps(4, num_adapted=0).teach(costs, 2 * ENGINE_S, is_first=False)
    costs.overhead.num_adapted = 0
    steps(4, num_adapted=4).teach(costs, 2 * ENGINE_S, is_first=False)
    assert (float(costs.seconds(9)), costs.overhead.extra_s(4)) == (before, 0)


def test_a_server_that_always_verifies_takes_its_steps_as_they_are(costs: StepCosts) -> None:
    for _ in range(300):
        steps(4, verifies=True).teach(costs, ENGINE_S + 0.005, is_first=False)
    assert float(costs.seconds(9)) == pytest.approx(ENGINE_S + 0.005, rel=0.02)


def test_steps_computed_at_once_share_their_time(costs: StepCosts) -> None:
    for _ in range(300):
        steps(1, verifies=False, count=5).teach(costs, 5 * 0.015, is_first=False)
    assert float(costs.seconds(9)) == pytest.approx(0.015, rel=0.02)


def test_the_first_steps_have_a_cost_of_their_own(costs: StepCosts) -> None:
    for _ in range(300):
        steps(1, verifies=False).teach(costs, 0.015, is_first=True)
    assert costs.first_s == pytest.approx(0.003, rel=0.02) and float(costs.seconds(9)) == ENGINE_S
