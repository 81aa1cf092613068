"""When a step computes rows that nobody needs."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipelines.executor.padding import StepPadding
from pipelines.executor.step import Chunk, pack
from pipelines.speculation.step_costs import StepCosts

CHANGE_S = 0.002


def costs() -> StepCosts:
    return StepCosts((2, 9, 40), (0.014, 0.016, 0.050))


def test_an_uncalibrated_engine_is_never_padded() -> None:
    padding = StepPadding()
    assert [padding.rows(wanted) for wanted in (9, 5, 9, 2)] == [9, 5, 9, 2]


def test_a_cheap_difference_is_padded_and_a_dear_one_is_not() -> None:
    padding = StepPadding(costs(), CHANGE_S)
    assert padding.rows(9) == 9
    assert padding.rows(6) == 9  # 0.9 ms against a change of 2 ms
    assert padding.rows(40) == 40
    assert padding.rows(30) == 30  # 11 ms against 2 ms


def test_padding_ends_when_it_has_cost_as_much_as_a_change() -> None:
    padding = StepPadding(costs(), CHANGE_S)
    padding.rows(9)
    sizes = [padding.rows(2) for _ in range(5)]
    assert sizes == [9, 2, 2, 2, 2]  # 2 ms each: the first is even with a change, the second beyond


@given(st.lists(st.integers(2, 40), min_size=1, max_size=60))
def test_a_step_has_room_and_all_costs_are_at_most_twice_the_least(wanted: list[int]) -> None:
    padding, model = StepPadding(costs(), CHANGE_S), costs()
    computed = [padding.rows(rows) for rows in wanted]
    assert all(rows >= needed for rows, needed in zip(computed, wanted, strict=True))
    changes = sum(a != b for a, b in pairwise(computed))
    extra_s = float(np.sum(model.seconds(computed) - model.seconds(wanted))) + changes * CHANGE_S
    never_padded = sum(a != b for a, b in pairwise(wanted)) * CHANGE_S
    assert extra_s <= 2 * never_padded + 1e-9


def test_dummy_rows_fill_a_step_and_give_no_logits() -> None:
    chunk = Chunk(np.array([5, 6], np.int32), 7, (1,), as_rows=True, num_logits=2)
    inputs = pack([chunk], 32, num_tokens=5)
    assert inputs.input_ids.tolist() == [5, 6, 0, 0, 0]
    assert inputs.past_lens.tolist() == [7, 8, 0, 0, 0]
    assert inputs.block_indices.tolist() == [1, 1, 0, 0, 0]
    assert inputs.logits_rows.tolist() == [0, 1]
