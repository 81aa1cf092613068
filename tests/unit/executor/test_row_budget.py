"""Tests of how many rows a step computes, and which draft tokens get them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.executor import executor as executor_module
from pipelines.executor.rows import RowBudget, step_sizes
from pipelines.executor.step import Chunk, pack
from pipelines.speculation.draft_length.step_costs import StepCosts
from tests.support.recording_engine import RecordingEngine, make_executor

CHANGE_S = 0.002
ROWS, SECONDS = (2, 9, 40, 64, 65, 144), (0.014, 0.016, 0.040, 0.056, 0.090, 0.170)
NOTHING = np.empty(0)
RATE = 200.0  # tokens per second


def costs() -> StepCosts:
    return StepCosts(ROWS, SECONDS)


def budget(rate: float = RATE) -> RowBudget:
    return RowBudget(costs(), CHANGE_S, lambda: rate)


def test_tokens_that_pay_for_their_rows_get_them() -> None:
    sure, hopeless = np.full(6, 0.95), np.full(6, 0.01)
    assert budget().rows(2, sure) == 8
    assert budget().rows(2, hopeless) == 2
    assert budget().rows(2, np.concatenate((sure[:3], hopeless))) == 5


def test_what_a_row_must_promise_depends_on_what_a_second_is_worth() -> None:
    worths = np.full(6, 0.1)
    assert budget(rate=100).rows(2, worths) == 8
    assert budget(rate=2000).rows(2, worths) == 2


def test_a_size_beyond_which_steps_cost_much_more_is_not_exceeded() -> None:
    assert budget(rate=500).rows(60, np.full(10, 0.9)) == 64


def test_the_shape_is_kept_until_another_was_missed_for_as_much_as_a_change_costs() -> None:
    rows = budget()
    assert rows.rows(9, NOTHING) == 9
    # 0.57 ms less for 7 rows: missed three times, that is less than 2 ms; the fourth time it is more.
    assert [rows.rows(7, NOTHING) for _ in range(5)] == [9, 9, 9, 7, 7]
    assert rows.rows(40, NOTHING) == 40
    assert rows.rows(20, NOTHING) == 20  # 15 ms against 2 ms, immediately


def test_rows_that_nobody_needs_go_to_the_next_likely_tokens() -> None:
    rows = budget()
    rows.rows(9, NOTHING)
    assert rows.rows(5, np.array([0.3, 0.2, 0.1, 0.05])) == 9


def test_beside_prompts_each_token_pays_for_itself_and_no_shape_is_kept() -> None:
    rows = budget()
    assert rows.rows_beside_prompts(30, np.array([0.9, 0.5, 0.1])) == 32
    assert rows.rows(9, NOTHING) == 9
    rows.rows_beside_prompts(30, NOTHING)
    assert rows.rows(7, NOTHING) == 7  # there is no shape to keep


def test_a_step_that_is_larger_than_any_that_was_measured_is_made_as_it_is() -> None:
    assert budget().rows(300, NOTHING) == 300


@given(st.lists(st.integers(2, 64), min_size=1, max_size=60))
def test_a_step_has_room_and_little_is_lost_to_padding_and_changes(wanted: list[int]) -> None:
    rows, model = budget(), costs()
    computed = [rows.rows(needed, NOTHING) for needed in wanted]
    assert all(made >= needed for made, needed in zip(computed, wanted, strict=True))
    changes = sum(a != b for a, b in pairwise(computed))
    # A size fits exactly or is one row too large.
    unpadded = np.array(wanted) + np.array(wanted) % 2
    extra_s = float(np.sum(model.seconds(computed) - model.seconds(unpadded))) + changes * CHANGE_S
    never_padded = sum(a != b for a, b in pairwise(wanted)) * CHANGE_S
    assert extra_s <= 2 * never_padded + 1e-9


@pytest.mark.parametrize("max_rows", [3, 16, 144, 150])
def test_sizes_are_few_and_end_with_the_largest(max_rows: int) -> None:
    sizes = step_sizes(max_rows)
    assert sizes[0] == 1 and sizes[-1] == max_rows and (np.diff(sizes) > 0).all() and len(sizes) < 60


def test_dummy_rows_fill_a_step_and_give_no_logits() -> None:
    chunk = Chunk(np.array([5, 6], np.int32), 7, (1,), as_rows=True, num_logits=2)
    inputs = pack([chunk], 32, num_tokens=5)
    assert inputs.input_ids.tolist() == [5, 6, 0, 0, 0]
    assert inputs.past_lens.tolist() == [7, 8, 0, 0, 0]
    assert inputs.block_indices.tolist() == [1, 1, 0, 0, 0]
    assert inputs.logits_rows.tolist() == [0, 1]


@pytest.mark.parametrize(("seconds", "sizes"), [(60.0, step_sizes(144).tolist()), (0.0, [1])])
def test_sizes_are_warmed_up_until_that_takes_too_long(
    seconds: float, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_module, "_WARM_UP_S", seconds)
    executor, computed = make_executor(RecordingEngine(64)), list[int]()
    executor.budget = budget()
    monkeypatch.setattr(executor.engine, "step", lambda inputs: computed.append(len(inputs.input_ids)))
    executor.warm_up()
    assert computed == sizes
