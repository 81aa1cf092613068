"""Tests of the products with INT8 weights: their bits against numpy's, whatever else is computed."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from build.openvino.own_linear import arranged
from tests.support.compiler import needs_compiler
from tests.unit.build.operators.calls import compile_calls

pytestmark = needs_compiler

Floats = npt.NDArray[np.float32]
LARGEST = np.float32(8191)
EXACT_INPUTS = 2048  # whose products are added as integers


class Weight:
    """A random weight [outputs, inputs] with a scale for each output."""

    def __init__(self, calls: ctypes.CDLL, num_inputs: int, num_outputs: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.calls = calls
        self.numbers = rng.integers(-128, 128, (num_outputs, num_inputs)).astype(np.int8)
        self.scale = rng.uniform(1e-4, 1e-2, num_outputs).astype(np.float32)

    def multiply(self, rows: Floats, num_threads: int = 1) -> Floats:
        """Return what the kernel computes, [rows, outputs]."""
        panels, scale = arranged(self.numbers, self.scale)
        rows = np.ascontiguousarray(rows)
        outputs, inputs = self.numbers.shape
        output = np.full((len(rows), outputs), 7, np.float32)
        pointers = [ctypes.c_void_p(array.ctypes.data) for array in (panels, scale, rows)]
        sizes = [ctypes.c_size_t(size) for size in (inputs, outputs, len(rows))]
        self.calls.multiply(
            *(*sizes[:2], *pointers, sizes[2], ctypes.c_void_p(output.ctypes.data), num_threads)
        )
        return output

    def expected(self, rows: Floats) -> Floats:
        """Return the same from numpy, rounded where the kernel rounds."""
        most = np.abs(rows).max(axis=1, keepdims=True)
        inverse = np.where(most < np.float32(1e-30), np.float32(0), LARGEST / np.maximum(most, 1e-30))
        numbers = np.rint(rows * inverse.astype(np.float32)).astype(np.int64)
        total = np.zeros((len(rows), len(self.numbers)), np.float32)
        for begin in range(0, rows.shape[1], EXACT_INPUTS):
            part = slice(begin, begin + EXACT_INPUTS)
            sums = numbers[:, part] @ self.numbers[:, part].T.astype(np.int64)
            assert np.abs(sums).max(initial=0) < 2**31
            total += sums.astype(np.float32)
        return total * (most / LARGEST * self.scale)


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    source = Path(__file__).with_name("kernel_calls.cpp")
    return compile_calls(tmp_path_factory.mktemp("kernel"), source, "linear_avx2")


def random_rows(count: int, size: int, seed: int = 1) -> Floats:
    """Return rows of different magnitudes."""
    rng = np.random.default_rng(seed)
    magnitudes = 10.0 ** rng.uniform(-6, 6, (count, 1))
    return (magnitudes * rng.standard_normal((count, size))).astype(np.float32)


@given(
    num_inputs=st.integers(1, 300),
    num_outputs=st.integers(1, 70),
    num_rows=st.integers(1, 20),
    num_threads=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
@example(num_inputs=4736, num_outputs=33, num_rows=7, num_threads=2, seed=0)
@example(num_inputs=2049, num_outputs=16, num_rows=1, num_threads=1, seed=0)
@settings(deadline=None, max_examples=150)
def test_each_bit_is_numpys(
    calls: ctypes.CDLL, num_inputs: int, num_outputs: int, num_rows: int, num_threads: int, seed: int
) -> None:
    weight = Weight(calls, num_inputs, num_outputs, seed)
    rows = random_rows(num_rows, num_inputs, seed)
    assert np.array_equal(weight.multiply(rows, num_threads), weight.expected(rows))


@pytest.mark.parametrize("num_threads", [1, 2, 4])
def test_a_row_has_the_same_bits_beside_any_others(calls: ctypes.CDLL, num_threads: int) -> None:
    weight = Weight(calls, 1536, 1552)
    rows = random_rows(300, 1536)
    alone = np.concatenate([weight.multiply(rows[at : at + 1]) for at in range(40)])
    for begin, end in ((0, 300), (0, 2), (3, 8), (5, 40), (11, 29)):
        found = weight.multiply(rows[begin:end], num_threads)
        assert np.array_equal(found[: 40 - begin], alone[begin:end])


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("num_inputs", [2048, 20_000])
def test_the_largest_sums_do_not_overflow(calls: ctypes.CDLL, num_inputs: int, sign: int) -> None:
    weight = Weight(calls, num_inputs, 16)
    weight.numbers[:] = -128
    rows = np.full((7, num_inputs), sign * 3.5, np.float32)
    found, expected = weight.multiply(rows), weight.expected(rows)
    assert np.array_equal(found, expected)
    assert np.all(np.sign(found) == -sign)


def test_it_is_as_exact_as_14_bits_are(calls: ctypes.CDLL) -> None:
    weight = Weight(calls, 1536, 64)
    rows = random_rows(20, 1536)
    exact = rows.astype(np.float64) @ (weight.numbers * weight.scale.astype(np.float64)[:, None]).T
    error = np.abs(weight.multiply(rows) - exact).max(axis=1)
    assert np.all(error < 1e-3 * np.abs(exact).max(axis=1))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 9, 99, 100])
def test_a_row_that_is_not_finite_stays_so_and_changes_no_other(
    calls: ctypes.CDLL, bad: float, at: int
) -> None:
    weight = Weight(calls, 101, 40)
    rows = random_rows(9, 101)
    expected = weight.multiply(rows)
    rows[4, at] = bad
    found = weight.multiply(rows)
    assert np.isnan(found[4]).all()
    others = np.arange(9) != 4
    assert np.array_equal(found[others], expected[others])


def test_rows_of_zeros_and_of_subnormal_numbers_become_0(calls: ctypes.CDLL) -> None:
    weight = Weight(calls, 64, 32)
    rows = np.zeros((3, 64), np.float32)
    rows[1] = 1e-40
    rows[2] = -9e-31
    assert np.abs(weight.multiply(rows)).max() < 1e-28
