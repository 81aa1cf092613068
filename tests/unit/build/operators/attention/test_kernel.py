"""Tests of the attention kernel: against float64, and its bits against those of plain decoding."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.compiler import needs_compiler
from tests.support.examples import examples
from tests.unit.build.operators.attention.kernel import (
    BLOCK,
    DTYPES,
    Floats,
    Kernel,
    Piece,
    Shape,
    Tokens,
    compile_kernel,
    expected_output,
    has_wide_lanes,
)

pytestmark = needs_compiler
needs_wide_lanes = pytest.mark.skipif(not has_wide_lanes(), reason="needs a processor with AVX-512")

LONGEST = 1300  # positions: six segments of the kernel, in two parts
BLOCKS_EACH = LONGEST // BLOCK + 1
NUM_REQUESTS = 4


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return compile_kernel(tmp_path_factory.mktemp("kernel"))


shapes = st.builds(
    Shape,
    num_kv_heads=st.integers(1, 3),
    group=st.integers(1, 5),
    head_size=st.sampled_from([16, 32, 48, 64, 80, 96, 128, 256]),
    window=st.sampled_from([0, 0, 1, 31, 100, 300]),
    dtype=st.sampled_from(DTYPES),
    softcap=st.sampled_from([0, 0, 0.5, 5, 50, 1e6]),
    has_sinks=st.booleans(),
)


def table(request: int) -> list[int]:
    """Return the blocks of a request: not neighbours, and in no order."""
    own = range(request, NUM_REQUESTS * BLOCKS_EACH, NUM_REQUESTS)
    return list(np.random.default_rng(request).permutation(own))


def new_kernel(calls: ctypes.CDLL, shape: Shape, *, is_wide: bool = False) -> Kernel:
    return Kernel(calls, shape, NUM_REQUESTS * BLOCKS_EACH, is_wide=is_wide)


def one_by_one(kernel: Kernel, tokens: Tokens, begin: int) -> Floats:
    """Return the outputs from ``begin`` on of plain decoding: a prompt, then one token a step."""
    if begin:
        kernel.step(Piece(tokens.part(0, begin), 0, table(0), as_rows=False))
    steps = [
        kernel.step(Piece(tokens.part(at, at + 1), at, table(0), as_rows=True))[0]
        for at in range(begin, len(tokens))
    ]
    return np.concatenate(steps)


def cuts(length: int, rng: np.random.Generator) -> Iterator[tuple[int, int]]:
    begin = 0
    while begin < length:
        end = min(length, begin + int(rng.choice([1, 2, 5, 9, 40, 200])))
        yield begin, end
        begin = end


@given(shape=shapes, length=st.integers(1, LONGEST), seed=st.integers(0, 1000))
@examples(60)
def test_outputs_are_those_of_float64(calls: ctypes.CDLL, shape: Shape, length: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tokens = Tokens.draw(shape, length, rng)
    kernel = new_kernel(calls, shape, is_wide=has_wide_lanes())
    found = [
        kernel.step(Piece(tokens.part(*cut), cut[0], table(0), bool(rng.integers(2))))[0]
        for cut in cuts(length, rng)
    ]
    np.testing.assert_allclose(np.concatenate(found), expected_output(shape, tokens), rtol=0, atol=1e-4)


@given(shape=shapes, length=st.integers(2, LONGEST), seed=st.integers(0, 1000))
@examples(60)
def test_bits_are_those_of_plain_decoding(calls: ctypes.CDLL, shape: Shape, length: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tokens = Tokens.draw(shape, length, rng)
    begin = int(rng.integers(0, length))
    expected = one_by_one(new_kernel(calls, shape), tokens, begin)
    kernel = new_kernel(calls, shape, is_wide=has_wide_lanes())
    found = []
    for cut in cuts(length, rng):
        pieces = [
            Piece(Tokens.draw(shape, count, rng), int(rng.integers(0, LONGEST - 200)), table(mate), as_rows)
            for mate, count, as_rows in ((1, 7, True), (2, 33, False), (3, 1, True))[: rng.integers(0, 4)]
        ]
        for piece in pieces:  # so that all positions before it are numbers
            kernel.step(Piece(Tokens.draw(shape, piece.start + 1, rng), 0, piece.blocks, as_rows=False))
        place = int(rng.integers(0, len(pieces) + 1))
        pieces.insert(place, Piece(tokens.part(*cut), cut[0], table(0), bool(rng.integers(2))))
        found.append(kernel.step(*pieces, num_threads=int(rng.integers(1, 5)))[place])
    assert np.array_equal(np.concatenate(found)[begin:], expected)


@needs_wide_lanes
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("softcap", "has_sinks"), [(0, False), (0, True), (5, False)])
def test_both_widths_give_the_same_bits(
    calls: ctypes.CDLL, softcap: float, has_sinks: bool, dtype: str
) -> None:
    shape = Shape(2, 3, 80, dtype=dtype, softcap=softcap, has_sinks=has_sinks)
    tokens = Tokens.draw(shape, LONGEST, np.random.default_rng(1))
    piece = Piece(tokens, 0, table(0), as_rows=False)
    narrow, wide = (new_kernel(calls, shape, is_wide=is_wide) for is_wide in (False, True))
    assert np.array_equal(narrow.step(piece)[0], wide.step(piece)[0])
    assert all(np.array_equal(*caches) for caches in zip(narrow.caches, wide.caches, strict=True))


def test_large_scores_are_neither_infinite_nor_lost(calls: ctypes.CDLL) -> None:
    shape = Shape(1, 2, 64)
    drawn = Tokens.draw(shape, 300, np.random.default_rng(2))
    tokens = Tokens(1000 * drawn.query, drawn.key, drawn.value)
    found = new_kernel(calls, shape).step(Piece(tokens, 0, table(0), as_rows=False))[0]
    np.testing.assert_allclose(found, expected_output(shape, tokens), rtol=0, atol=2e-2)


def test_scores_far_above_the_cap_become_the_cap(calls: ctypes.CDLL) -> None:
    """All scores are plus or minus 3: those of keys along the query weigh e^6 times as much as the others."""
    shape = Shape(1, 1, 16, softcap=3)
    signs = np.array([1, -1, 1, 1, -1], np.float32)
    key = np.repeat(1e6 * signs[:, None, None], 16, axis=2)
    value = np.repeat(np.arange(5, dtype=np.float32)[:, None, None], 16, axis=2)
    tokens = Tokens(np.ones((5, 1, 16), np.float32), key, value)
    found = new_kernel(calls, shape).step(Piece(tokens, 0, table(0), as_rows=False))[0]
    weights = np.exp(3.0 * signs)
    np.testing.assert_allclose(found[-1], weights @ np.arange(5) / weights.sum(), rtol=1e-6)


@pytest.mark.parametrize("softcap", [0, 5])
def test_a_query_that_is_no_number_gives_no_number(calls: ctypes.CDLL, softcap: float) -> None:
    shape = Shape(1, 2, 64, softcap=softcap)
    tokens = Tokens.draw(shape, 40, np.random.default_rng(2))
    tokens.query[7, 1, 3] = np.nan
    found = new_kernel(calls, shape).step(Piece(tokens, 0, table(0), as_rows=False))[0]
    is_number = np.isfinite(found).all(axis=2)
    assert np.argwhere(~is_number).tolist() == [[7, 1]]


@pytest.mark.parametrize("length", [1, 300, LONGEST])
def test_a_sink_far_below_the_scores_changes_no_bit(calls: ctypes.CDLL, length: int) -> None:
    """And one far above them, of the last head, leaves next to nothing of the values."""
    plain, with_sinks = (Shape(1, 2, 64, has_sinks=has_sinks) for has_sinks in (False, True))
    tokens = Tokens.draw(plain, length, np.random.default_rng(7))
    tokens = Tokens(tokens.query / 100, tokens.key, tokens.value)
    expected, found = (
        new_kernel(calls, shape).step(Piece(tokens, 0, table(0), as_rows=False))[0]
        for shape in (plain, with_sinks)
    )
    assert np.array_equal(found[:, 0], expected[:, 0])
    assert 0 < np.abs(found[:, 1]).max() < 1e-8


def test_a_rejected_draft_changes_no_bit_of_what_follows(calls: ctypes.CDLL) -> None:
    shape = Shape(2, 2, 64, dtype="int8")
    rng = np.random.default_rng(3)
    tokens, rejected = Tokens.draw(shape, 90, rng), Tokens.draw(shape, 9, rng)
    expected = one_by_one(new_kernel(calls, shape), tokens, 50)
    kernel = new_kernel(calls, shape)
    kernel.step(Piece(tokens.part(0, 50), 0, table(0), as_rows=False))
    kernel.step(Piece(rejected, 50, table(0), as_rows=True))
    found = kernel.step(Piece(tokens.part(50, 90), 50, table(0), as_rows=True))[0]
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("has_sinks", [False, True])
def test_rows_and_a_prompt_of_two_parts_have_the_same_bits(calls: ctypes.CDLL, has_sinks: bool) -> None:
    """A long prompt is divided among the threads by tiles of rows, a row by parts of its context."""
    shape = Shape(2, 2, 64, dtype="int8", has_sinks=has_sinks)
    tokens = Tokens.draw(shape, LONGEST, np.random.default_rng(5))
    expected = one_by_one(new_kernel(calls, shape), tokens, LONGEST - 20)
    found = new_kernel(calls, shape).step(Piece(tokens, 0, table(0), as_rows=False))[0]
    assert np.array_equal(found[-20:], expected)


def test_a_value_beyond_float16_changes_no_row_before_it(calls: ctypes.CDLL) -> None:
    shape = Shape(1, 2, 64, dtype="float16")
    tokens = Tokens.draw(shape, 40, np.random.default_rng(6))
    tokens.value[36] = 1e6
    expected = one_by_one(new_kernel(calls, shape), tokens, 30)
    kernel = new_kernel(calls, shape)
    kernel.step(Piece(tokens.part(0, 30), 0, table(0), as_rows=False))
    found = kernel.step(Piece(tokens.part(30, 40), 30, table(0), as_rows=True))[0]
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("window", "as_rows"), [(0, False), (0, True), (40, False)])
def test_a_number_that_is_not_finite_reaches_only_rows_that_see_it(
    calls: ctypes.CDLL, window: int, as_rows: bool, dtype: str, bad: float
) -> None:
    """A rejected draft token may have such keys and values; the rows before it are accepted."""
    shape = Shape(2, 3, 64, window=window, dtype=dtype)
    tokens = Tokens.draw(shape, 330, np.random.default_rng(4))
    begin, at = 250, 270

    def outputs() -> Floats:
        kernel = new_kernel(calls, shape, is_wide=has_wide_lanes())
        prompt = kernel.step(Piece(tokens.part(0, begin), 0, table(0), as_rows=False))[0]
        rows = kernel.step(Piece(tokens.part(begin, len(tokens)), begin, table(0), as_rows))[0]
        return np.concatenate([prompt, rows])

    expected = outputs()
    for array in (tokens.query, tokens.key, tokens.value):
        array[at, :, 0] = bad
    found = outputs()
    is_blind = np.arange(len(tokens)) < at
    if window:
        is_blind |= np.arange(len(tokens)) >= at + window
    assert np.array_equal(found[is_blind], expected[is_blind])
    assert np.isnan(found[at]).all()
