"""Tests of the recurrence kernel: against float64, and its bits against those of rows one by one."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from build.networks.recurrent import RecurrentSizes, RecurrentWeights
from tests.support.compiler import needs_compiler
from tests.support.examples import examples
from tests.unit.build.operators.attention.kernel import has_wide_lanes
from tests.unit.build.operators.recurrence.kernel import (
    Floats,
    Kernel,
    Piece,
    compile_kernel,
    draw_rows,
    draw_weights,
    expected_output,
)

pytestmark = needs_compiler
needs_wide_lanes = pytest.mark.skipif(not has_wide_lanes(), reason="needs a processor with AVX-512")

SIZES = RecurrentSizes(num_key_heads=2, num_value_heads=4, key_size=128, value_size=128)
TINY = RecurrentSizes(num_key_heads=1, num_value_heads=2, key_size=16, value_size=32)
SLOT = 2
MOST_ROWS = 8


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compile_kernel(tmp_path_factory.mktemp("kernel"))


@st.composite
def sizes_of_layers(draw: st.DrawFn) -> RecurrentSizes:
    num_key_heads = draw(st.integers(1, 3))
    return RecurrentSizes(
        num_key_heads=num_key_heads,
        num_value_heads=num_key_heads * draw(st.integers(1, 3)),
        key_size=draw(st.sampled_from([16, 48, 128])),
        value_size=draw(st.sampled_from([32, 96, 128])),
    )


def one_by_one(calls: ctypes.CDLL, sizes: RecurrentSizes, weights: RecurrentWeights, rows: Floats) -> Floats:
    """Return the outputs of plain decoding with AVX2: a row a step, alone, on one thread."""
    kernel = Kernel(calls, sizes, weights)
    steps = [kernel.step(Piece(rows[at : at + 1], at, SLOT, as_rows=True))[0] for at in range(len(rows))]
    return np.concatenate(steps)


def cuts(length: int, rng: np.random.Generator) -> Iterator[tuple[int, int, bool]]:
    """Yield begin, end, and whether the rows may be rejected."""
    begin = 0
    while begin < length:
        end = min(length, begin + int(rng.choice([1, 2, 3, 5, MOST_ROWS, 30])))
        yield begin, end, end - begin <= MOST_ROWS and bool(rng.integers(3))
        begin = end


@given(sizes=sizes_of_layers(), length=st.integers(1, 120), seed=st.integers(0, 1000))
@examples(60)
def test_outputs_are_those_of_float64(
    calls: ctypes.CDLL, sizes: RecurrentSizes, length: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    weights, rows = draw_weights(sizes, rng), draw_rows(sizes, length, rng)
    kernel = Kernel(calls, sizes, weights, is_wide=has_wide_lanes())
    found = [
        kernel.step(Piece(rows[begin:end], begin, SLOT, as_rows))[0]
        for begin, end, as_rows in cuts(length, rng)
    ]
    expected = expected_output(sizes, weights, rows)
    np.testing.assert_allclose(np.concatenate(found), expected, rtol=2e-4, atol=2e-5)


@given(sizes=sizes_of_layers(), length=st.integers(1, 80), seed=st.integers(0, 1000))
@examples(60)
def test_bits_are_those_of_rows_one_by_one(
    calls: ctypes.CDLL, sizes: RecurrentSizes, length: int, seed: int
) -> None:
    """Whatever is computed with them, on how many threads, and how many rows were rejected before."""
    rng = np.random.default_rng(seed)
    weights, rows = draw_weights(sizes, rng), draw_rows(sizes, length, rng)
    kernel = Kernel(calls, sizes, weights, is_wide=has_wide_lanes())
    found, mates = [], dict.fromkeys((0, 1, 3), 0)
    for begin, end, as_rows in cuts(length, rng):
        drafted = rows[begin:end]
        if as_rows:
            num_rejected = int(rng.integers(0, MOST_ROWS - len(drafted) + 1))
            drafted = np.concatenate([drafted, draw_rows(sizes, num_rejected, rng)])
        pieces = [Piece(drafted, begin, SLOT, as_rows)]
        for slot in rng.permutation(list(mates))[: rng.integers(0, 4)]:
            count = int(rng.integers(1, 5))
            mate = Piece(draw_rows(sizes, count, rng), mates[slot], int(slot), bool(rng.integers(2)))
            mates[slot] += count
            pieces.insert(int(rng.integers(0, 2)), mate)
        padding = Piece(draw_rows(sizes, 2, rng), 0, -1, as_rows=True)
        pieces.insert(int(rng.integers(0, len(pieces) + 1)), padding)
        place = next(index for index, piece in enumerate(pieces) if piece.slot == SLOT)
        outputs = kernel.step(*pieces, num_threads=int(rng.choice([1, 2, 4])))
        found.append(outputs[place][: end - begin])
    assert np.array_equal(np.concatenate(found), one_by_one(calls, sizes, weights, rows))


@needs_wide_lanes
@pytest.mark.parametrize("as_rows", [False, True])
def test_both_widths_give_the_same_bits(calls: ctypes.CDLL, as_rows: bool) -> None:
    rng = np.random.default_rng(1)
    weights, rows = draw_weights(SIZES, rng), draw_rows(SIZES, 200, rng)
    narrow, wide = (
        Kernel(calls, SIZES, weights, num_log_rows=200, is_wide=is_wide) for is_wide in (False, True)
    )
    piece = Piece(rows, 0, SLOT, as_rows)
    assert np.array_equal(narrow.step(piece)[0], wide.step(piece)[0])
    assert np.array_equal(narrow.states[SLOT], wide.states[SLOT])
    assert np.array_equal(narrow.logs[SLOT], wide.logs[SLOT])


def test_a_verification_leaves_the_state_as_it_was(calls: ctypes.CDLL) -> None:
    rng = np.random.default_rng(2)
    kernel = Kernel(calls, SIZES, draw_weights(SIZES, rng))
    kernel.step(Piece(draw_rows(SIZES, 20, rng), 0, SLOT, as_rows=False))
    before = kernel.states.copy()
    rows = draw_rows(SIZES, MOST_ROWS, rng)
    first, again = (kernel.step(Piece(rows, 20, SLOT, as_rows=True))[0] for _ in range(2))
    changed = np.flatnonzero((kernel.states != before).any(axis=0))
    assert set(changed) <= set(range(4, 8))  # the number of rows in the log
    assert np.array_equal(first, again)


@pytest.mark.parametrize("as_rows", [False, True])
def test_a_new_request_begins_from_zeros(calls: ctypes.CDLL, as_rows: bool) -> None:
    rng = np.random.default_rng(5)
    weights, rows = draw_weights(TINY, rng), draw_rows(TINY, 5, rng)
    kernel = Kernel(calls, TINY, weights)
    kernel.step(Piece(draw_rows(TINY, 30, rng), 0, SLOT, as_rows=False))
    kernel.step(Piece(draw_rows(TINY, 4, rng), 30, SLOT, as_rows=True))
    found = kernel.step(Piece(rows, 0, SLOT, as_rows))[0]
    assert np.array_equal(found, one_by_one(calls, TINY, weights, rows))


def test_rows_of_padding_are_zeros_and_change_no_slot(calls: ctypes.CDLL) -> None:
    rng = np.random.default_rng(6)
    kernel = Kernel(calls, TINY, draw_weights(TINY, rng))
    before = kernel.states.copy(), kernel.logs.copy()
    rows = np.full((3, TINY.width), np.nan, np.float32)
    assert not kernel.step(Piece(rows, 0, -1, as_rows=True))[0].any()
    assert np.array_equal(kernel.states, before[0])
    assert np.array_equal(kernel.logs, before[1])


def test_a_row_that_is_no_number_stays_in_its_request(calls: ctypes.CDLL) -> None:
    rng = np.random.default_rng(7)
    weights, rows = draw_weights(TINY, rng), draw_rows(TINY, 6, rng)
    broken = rows.copy()
    broken[3] = np.nan
    pieces = (
        Piece(rows, 0, 0, as_rows=False),
        Piece(broken, 0, 1, as_rows=True),
        Piece(rows, 0, 2, as_rows=True),
    )
    first, second, third = Kernel(calls, TINY, weights).step(*pieces)
    expected = one_by_one(calls, TINY, weights, rows)
    assert np.array_equal(first, expected)
    assert np.array_equal(third, expected)
    assert np.array_equal(second[:3], expected[:3])
    assert np.isnan(second[3:]).all()


@pytest.mark.parametrize("gate", [-200.0, -30.0, -1e-3, 0.0, 1e-3, 30.0, 200.0])
def test_gates_far_from_zero_are_those_of_float64(calls: ctypes.CDLL, gate: float) -> None:
    rng = np.random.default_rng(8)
    weights, rows = draw_weights(TINY, rng), draw_rows(TINY, 20, rng)
    rows[:, TINY.channels :] = np.float32(gate)  # output gates, b and a
    expected = expected_output(TINY, weights, rows)
    found = Kernel(calls, TINY, weights).step(Piece(rows, 0, SLOT, as_rows=False))[0]
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-5 * max(1, abs(gate)))
