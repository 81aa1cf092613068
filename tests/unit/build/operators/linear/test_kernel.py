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
from build.operators import library
from tests.support.compiler import needs_compiler
from tests.support.examples import examples
from tests.unit.build.operators.calls import compile_calls

pytestmark = needs_compiler

Floats = npt.NDArray[np.float32]
SMALL_BITS = [4, 5, 6]  # rounded in blocks
EXACT_INPUTS = 2048  # whose products of 8 bits are added as integers
FORMS = ["", "half", "level", "offset", "offset, half", "offset, level"]


class Weight:
    """A random weight [outputs, inputs] with a scale for each output and group of inputs.

    Args:
        form: ``offset``; and whether scales are ``half``, or ``level``s of units.
        groups_of_a_unit: That share a unit, with ``level``.
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
        groups_of_a_unit: int = 1,
    ) -> None:
        rng = np.random.default_rng(seed)
        self.calls = calls
        kinds, is_unsigned = 1 + ("offset" in form), "offset" in form
        lowest = 0 if is_unsigned else -(2 ** (bits - 1))
        numbers = rng.integers(lowest, lowest + 2**bits, (num_outputs, num_inputs)).astype(np.int8)
        values = rng.uniform(1e-4, 1e-2, (num_outputs, kinds, num_groups)).astype(np.float32)
        units = None
        if "half" in form or "level" in form:
            values = values.astype(np.float16).astype(np.float32)
        self.levels = np.ones(values.shape, np.int64)
        if "level" in form:
            units = np.ascontiguousarray(values[..., ::groups_of_a_unit]) / 64
            self.levels = rng.integers(-128, 128, values.shape)
            values = (np.repeat(units, groups_of_a_unit, axis=2) * self.levels).astype(np.float32)
        self.units = values if units is None else units  # [outputs, kinds, units]
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
            self.calls.is_wide,
        )
        assert np.all(guarded[-1] == 7), "written behind the last row"
        return output

    def expected(self, rows: Floats) -> Floats:
        """Return the same from numpy, rounded where the kernel rounds."""
        return (self._by_bytes if self.bits == 8 else self._by_blocks)(rows)

    def _by_bytes(self, rows: Floats) -> Floats:
        numbers, unit = rounded(rows, 8191)
        total = np.zeros((len(rows), len(self.numbers)), np.float64)
        size = rows.shape[1] // self.scale.shape[1]
        for group, scale in enumerate(self.scale.T):
            for begin in range(group * size, (group + 1) * size, EXACT_INPUTS):
                part = slice(begin, min((group + 1) * size, begin + EXACT_INPUTS))
                total = fused(self._sums(numbers, part), scale, total)
        return total.astype(np.float32) * unit

    def _by_blocks(self, rows: Floats) -> Floats:
        total = np.zeros((len(rows), len(self.numbers)), np.float64)
        num_groups, num_units = self.scale.shape[1], self.units.shape[2]
        group, of_a_unit = rows.shape[1] // num_groups, rows.shape[1] // num_units
        chunk = 16 if self.bits == 6 else 32
        size = max(size for size in range(chunk, 257, chunk) if of_a_unit % size == 0)
        group = min(group, size)
        for begin in range(0, rows.shape[1], size):
            numbers, unit = rounded(rows[:, begin : begin + size], 127)
            sums = np.zeros((2, len(rows), len(self.numbers)), np.int64)  # of products, and of inputs
            for first in range(0, size, group):
                part, inputs = slice(first, first + group), slice(begin + first, begin + first + group)
                levels = self.levels[..., (begin + first) * num_groups // rows.shape[1]]
                sums[0] += levels[:, 0] * (numbers[:, part] @ self.numbers[:, inputs].T.astype(np.int64))
                sums[1] += levels[:, -1] * numbers[:, part].sum(axis=1, keepdims=True)
            assert np.abs(sums).max() < 2**31
            for kind in range(self.units.shape[1])[::-1]:
                factor = self.units[:, kind, begin // of_a_unit] * unit
                total = fused(sums[kind].astype(np.float32), factor, total)
        return total.astype(np.float32)

    def _sums(self, numbers: npt.NDArray[np.int64], part: slice) -> Floats:
        sums = numbers[:, part] @ self.numbers[:, part].T.astype(np.int64)
        assert np.abs(sums).max(initial=0) < 2**31
        return sums.astype(np.float32)


def rounded(rows: Floats, largest: int) -> tuple[npt.NDArray[np.int64], Floats]:
    """Return rows as integers, and what each counts by."""
    most = np.abs(rows).max(axis=1, keepdims=True)
    inverse = np.where(most < np.float32(1e-30), 0, np.float32(largest) / np.maximum(most, 1e-30))
    return np.rint(rows * inverse.astype(np.float32)).astype(np.int64), most / np.float32(largest)


def fused(a: Floats, b: Floats, total: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Add a product, rounded once: that of two floats is exact in float64, the sum nearly always."""
    return (a.astype(np.float64) * b + total).astype(np.float32).astype(np.float64)


def has_vnni() -> bool:
    return " avx512_vnni " in Path("/proc/cpuinfo").read_text(encoding="utf-8")


needs_vnni = pytest.mark.skipif(not has_vnni(), reason="needs a processor with AVX-512 and VNNI")


@pytest.fixture(scope="module", params=["avx2", pytest.param("avx512", marks=needs_vnni)])
def calls(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    source = Path(__file__).with_name("kernel_calls.cpp")
    parts = [f"linear_{part}_{lanes}" for part in library.PRODUCTS for lanes in ("avx2", "avx512")]
    compiled = compile_calls(tmp_path_factory.mktemp("kernel"), source, *parts)
    compiled.is_wide = ctypes.c_bool(request.param == "avx512")
    return compiled


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
@examples(150)
def test_each_bit_of_bytes_is_numpys(
    calls: ctypes.CDLL, num_inputs: int, num_outputs: int, num_rows: int, num_threads: int, seed: int
) -> None:
    weight = Weight(calls, num_inputs, num_outputs, seed)
    rows = random_rows(num_rows, num_inputs, seed)
    assert np.array_equal(weight.multiply(rows, num_threads), weight.expected(rows))


@given(
    bits=st.sampled_from(SMALL_BITS),
    form=st.sampled_from(FORMS),
    num_chunks=st.integers(1, 3),
    groups_of_a_unit=st.integers(1, 16),
    num_units=st.integers(1, 4),
    num_outputs=st.integers(1, 70),
    num_rows=st.integers(1, 20),
    num_threads=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
@example(6, "level", 1, 16, 35, 33, 7, 2, 0)
@example(4, "offset, level", 1, 7, 4, 16, 9, 1, 0)
@example(4, "", 28, 1, 1, 16, 9, 1, 0)
@example(5, "half", 1, 1, 28, 40, 5, 1, 0)
@examples(200)
def test_each_bit_of_blocks_is_numpys(
    calls: ctypes.CDLL,
    bits: int,
    form: str,
    num_chunks: int,
    groups_of_a_unit: int,
    num_units: int,
    num_outputs: int,
    num_rows: int,
    num_threads: int,
    seed: int,
) -> None:
    group = num_chunks * (16 if bits == 6 else 32)
    if "level" in form:
        groups_of_a_unit = max(1, min(groups_of_a_unit, 256 // group))
    num_groups = groups_of_a_unit * num_units
    sizes = {"bits": bits, "num_groups": num_groups, "groups_of_a_unit": groups_of_a_unit}
    weight = Weight(calls, group * num_groups, num_outputs, seed, form=form, **sizes)
    rows = random_rows(num_rows, group * num_groups, seed)
    assert np.array_equal(weight.multiply(rows, num_threads), weight.expected(rows))


@pytest.mark.parametrize("form", ["", "half"])
@pytest.mark.parametrize(("group_size", "num_groups"), [(2, 5), (32, 3), (128, 12), (4096, 2)])
def test_groups_of_bytes_have_scales_of_their_own(
    calls: ctypes.CDLL, form: str, group_size: int, num_groups: int
) -> None:
    weight = Weight(calls, group_size * num_groups, 40, num_groups=num_groups, form=form)
    rows = random_rows(15, group_size * num_groups)
    assert np.array_equal(weight.multiply(rows, 2), weight.expected(rows))


@pytest.mark.parametrize("num_threads", [1, 2, 4])
@pytest.mark.parametrize(
    ("bits", "num_groups", "form"), [(8, 1, ""), (4, 48, "offset, level"), (5, 48, "half"), (6, 96, "level")]
)
def test_a_row_has_the_same_bits_beside_any_others(
    calls: ctypes.CDLL, bits: int, num_groups: int, form: str, num_threads: int
) -> None:
    weight = Weight(
        calls, 1536, 1552, bits=bits, num_groups=num_groups, form=form, groups_of_a_unit=num_groups // 6 or 1
    )
    rows = random_rows(300, 1536)
    alone = np.concatenate([weight.multiply(rows[at : at + 1]) for at in range(40)])
    for begin, end in ((0, 300), (0, 2), (3, 8), (5, 40), (11, 29)):
        found = weight.multiply(rows[begin:end], num_threads)
        assert np.array_equal(found[: 40 - begin], alone[begin:end])


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("num_inputs", [2048, 20_000])
def test_the_largest_sums_of_bytes_do_not_overflow(calls: ctypes.CDLL, num_inputs: int, sign: int) -> None:
    weight = Weight(calls, num_inputs, 16)
    weight.numbers[:] = -128
    rows = np.full((7, num_inputs), sign * 3.5, np.float32)
    found, expected = weight.multiply(rows), weight.expected(rows)
    assert np.array_equal(found, expected)
    assert np.all(np.sign(found) == -sign)


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("level", [-128, 127])
@pytest.mark.parametrize("form", ["level", "offset, level"])
@pytest.mark.parametrize("bits", SMALL_BITS)
def test_the_largest_sums_of_blocks_do_not_overflow(
    calls: ctypes.CDLL, bits: int, form: str, level: int, sign: int
) -> None:
    groups = 32 if bits == 6 else 16
    weight = Weight(calls, 512, 16, bits=bits, num_groups=groups, form=form, groups_of_a_unit=groups // 2)
    weight.numbers[:] = 2**bits - 1 if "offset" in form else -(2 ** (bits - 1))
    weight.levels[:] = level
    assert weight.linear.scale is not None
    weight.linear.scale[:] = np.repeat(weight.units[:, 0], groups // 2, axis=1) * level
    if weight.linear.offset is not None:
        weight.linear.offset[:] = np.repeat(weight.units[:, 1], groups // 2, axis=1) * level
    rows = np.full((7, 512), sign * 3.5, np.float32)
    assert np.array_equal(weight.multiply(rows), weight.expected(rows))


@pytest.mark.parametrize(("bits", "least"), [(8, 1e-3), (4, 0.03), (6, 0.03)])
def test_it_is_as_exact_as_the_rounded_inputs_are(calls: ctypes.CDLL, bits: int, least: float) -> None:
    weight = Weight(calls, 1536, 64, bits=bits)
    rows = random_rows(20, 1536)
    exact = rows.astype(np.float64) @ (weight.numbers * weight.scale.astype(np.float64)).T
    error = np.abs(weight.multiply(rows) - exact).max(axis=1)
    assert np.all(error < least * np.abs(exact).max(axis=1))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("bits", "num_inputs"), [(8, 101), (4, 512)])
@pytest.mark.parametrize("at", [0, 9, 99, 100])
def test_a_row_that_is_not_finite_stays_so_and_changes_no_other(
    calls: ctypes.CDLL, bits: int, num_inputs: int, bad: float, at: int
) -> None:
    weight = Weight(calls, num_inputs, 40, bits=bits)
    rows = random_rows(9, num_inputs)
    expected = weight.multiply(rows)
    rows[4, at] = bad
    found = weight.multiply(rows)
    assert np.isnan(found[4]).all()
    others = np.arange(9) != 4
    assert np.array_equal(found[others], expected[others])


@pytest.mark.parametrize("bits", [8, *SMALL_BITS])
def test_rows_of_zeros_and_of_subnormal_numbers_become_0(calls: ctypes.CDLL, bits: int) -> None:
    weight = Weight(calls, 64, 32, bits=bits)
    rows = np.zeros((3, 64), np.float32)
    rows[1] = 1e-40
    rows[2] = -9e-31
    assert not weight.multiply(rows).any()
