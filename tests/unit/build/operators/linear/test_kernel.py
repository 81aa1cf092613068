"""Tests of the products with integer weights: their bits against numpy's, whatever else is computed."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from build.checkpoints.tensor_file import Tensor
from build.networks.linear import Linear
from build.openvino.own_operators import arranged
from tests.support.compiler import needs_compiler
from tests.support.examples import examples
from tests.unit.build.operators.calls import compile_calls

pytestmark = needs_compiler

Floats = npt.NDArray[np.float32]
LARGEST = np.float32(8191)
EXACT_INPUTS = 2048  # whose products are added as integers


class Weight:
    """A random weight [outputs, inputs] with a scale for each output and group of inputs.

    Args:
        calls: The kernel.
        form: ``offset``; and whether scales are ``half``, or ``level``s of units that two groups share.
    """

    def __init__(
        self,
        calls: ctypes.CDLL,
        num_inputs: int,
        num_outputs: int,
        seed: int = 0,
        *,
        bits: int = 8,
        num_groups: int = 1,
        form: str = "",
    ) -> None:
        rng = np.random.default_rng(seed)
        self.calls = calls
        kinds, is_unsigned = 1 + ("offset" in form), bits == 4 and "offset" in form
        lowest = 0 if is_unsigned else -(2 ** (bits - 1))
        numbers = rng.integers(lowest, lowest + 2**bits, (num_outputs, num_inputs)).astype(np.int8)
        values = rng.uniform(1e-4, 1e-2, (num_outputs, kinds, num_groups)).astype(np.float32)
        units = None
        if "half" in form or "level" in form:
            values = values.astype(np.float16).astype(np.float32)
        if "level" in form:
            units = values[..., : num_groups // 2] / 64
            levels = rng.integers(-128, 128, values.shape).astype(np.float32)
            values = (np.repeat(units, 2, axis=2) * levels).astype(np.float32)
        self.linear = Linear(
            Tensor(
                "U8" if is_unsigned else "I8", numbers.shape, numbers.view("u1") if is_unsigned else numbers
            ),
            values[:, 0],
            bits=bits,
            offset=values[:, 1] if kinds == 2 else None,
            units=units,
        )
        self.numbers, self.bits, self.scale = self.linear.weight.data, bits, values[:, 0]

    def multiply(self, rows: Floats, num_threads: int = 1) -> Floats:
        """Return what the kernel computes, [rows, outputs]."""
        panels, units, levels = arranged(self.linear)
        rows = np.ascontiguousarray(rows)
        outputs, inputs = self.numbers.shape
        guarded = np.full((len(rows) + 1, outputs), 7, np.float32)
        output = guarded[:-1]
        sizes = (inputs, outputs, self.bits, self.scale.shape[1], units.shape[1], units.shape[2])
        arrays = (panels, units, levels, rows)
        pointers = [ctypes.c_void_p(None if array is None else array.ctypes.data) for array in arrays]
        self.calls.multiply(
            *map(ctypes.c_size_t, sizes),
            units.dtype == np.float16,
            *pointers,
            ctypes.c_size_t(len(rows)),
            ctypes.c_void_p(output.ctypes.data),
            num_threads,
        )
        assert np.all(guarded[-1] == 7), "written behind the last row"
        return output

    def expected(self, rows: Floats) -> Floats:
        """Return the same from numpy, rounded where the kernel rounds."""
        most = np.abs(rows).max(axis=1, keepdims=True)
        inverse = np.where(most < np.float32(1e-30), np.float32(0), LARGEST / np.maximum(most, 1e-30))
        numbers = np.rint(rows * inverse.astype(np.float32)).astype(np.int64)
        total = np.zeros((len(rows), len(self.numbers)), np.float64)
        size = rows.shape[1] // self.scale.shape[1]
        if self.linear.offset is not None:
            for group, offset in enumerate(self.linear.offset.T):
                inputs = numbers[:, group * size : (group + 1) * size].sum(axis=1, keepdims=True)
                total = fused(inputs.astype(np.float32), offset, total)
        for group, scale in enumerate(self.scale.T):
            for begin in range(group * size, (group + 1) * size, EXACT_INPUTS):
                part = slice(begin, min((group + 1) * size, begin + EXACT_INPUTS))
                sums = numbers[:, part] @ self.numbers[:, part].T.astype(np.int64)
                assert np.abs(sums).max(initial=0) < 2**31
                total = fused(sums.astype(np.float32), scale, total)
        return total.astype(np.float32) * (most / LARGEST)


def fused(a: Floats, b: Floats, total: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Add a product, rounded once: that of two floats is exact in float64, the sum nearly always."""
    return (a.astype(np.float64) * b + total).astype(np.float32).astype(np.float64)


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
    bits=st.sampled_from([8, 4]),
    num_inputs=st.integers(1, 300),
    num_outputs=st.integers(1, 70),
    num_rows=st.integers(1, 20),
    num_threads=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
@example(bits=8, num_inputs=4736, num_outputs=33, num_rows=7, num_threads=2, seed=0)
@example(bits=4, num_inputs=2049, num_outputs=16, num_rows=1, num_threads=1, seed=0)
@examples(150)
def test_each_bit_is_numpys(
    calls: ctypes.CDLL,
    bits: int,
    num_inputs: int,
    num_outputs: int,
    num_rows: int,
    num_threads: int,
    seed: int,
) -> None:
    weight = Weight(calls, num_inputs, num_outputs, seed, bits=bits)
    rows = random_rows(num_rows, num_inputs, seed)
    assert np.array_equal(weight.multiply(rows, num_threads), weight.expected(rows))


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(("group_size", "num_groups"), [(2, 5), (32, 3), (128, 12), (4096, 2)])
def test_each_group_of_inputs_has_scales_of_its_own(
    calls: ctypes.CDLL, bits: int, group_size: int, num_groups: int
) -> None:
    weight = Weight(calls, group_size * num_groups, 40, bits=bits, num_groups=num_groups)
    rows = random_rows(15, group_size * num_groups)
    found, expected = weight.multiply(rows, 2), weight.expected(rows)
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("form", ["", "half", "level", "offset", "offset, half", "offset, level"])
@pytest.mark.parametrize(("bits", "group_size"), [(8, 16), (8, 32), (4, 16), (4, 32), (4, 4096)])
def test_groups_may_have_offsets_and_scales_in_few_bytes(
    calls: ctypes.CDLL, form: str, bits: int, group_size: int
) -> None:
    weight = Weight(calls, group_size * 6, 40, bits=bits, num_groups=6, form=form)
    units, levels = weight.linear.short_scales()
    assert (units.dtype == np.float16, levels is not None) == ("half" in form, "level" in form)
    rows = random_rows(15, group_size * 6)
    assert np.array_equal(weight.multiply(rows, 2), weight.expected(rows))
    exact = rows.astype(np.float64) @ weight.linear.to_float32().T
    assert np.all(np.abs(weight.multiply(rows) - exact).max(axis=1) < 1e-3 * np.abs(exact).max(axis=1))


@pytest.mark.parametrize("num_threads", [1, 2, 4])
@pytest.mark.parametrize(("bits", "num_groups", "form"), [(8, 1, ""), (4, 12, ""), (4, 48, "offset, level")])
def test_a_row_has_the_same_bits_beside_any_others(
    calls: ctypes.CDLL, bits: int, num_groups: int, form: str, num_threads: int
) -> None:
    weight = Weight(calls, 1536, 1552, bits=bits, num_groups=num_groups, form=form)
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
    exact = rows.astype(np.float64) @ (weight.numbers * weight.scale.astype(np.float64)).T
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
    assert not weight.multiply(rows).any()
