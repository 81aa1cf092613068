"""Tests of quantized projections: errors, lattices, and what is stacked, split and stored in few bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from build.checkpoints.tensor_file import Float32Array, Tensor
from build.networks.linear import Linear, stack
from build.networks.weight_only import quantize_int4, quantize_int8
from tests.support.examples import examples


def squared_errors(values: Float32Array) -> Float32Array:
    """Return the sum of squared errors of each group, [out, groups]."""
    errors = quantize_int4(values).to_float32() - values
    return np.square(errors).reshape(len(values), -1, 32).sum(axis=2)


def rounded_to_nearest(values: Float32Array) -> Float32Array:
    """Return the same with sixteen codes from the least to the largest number."""
    groups = values.reshape(len(values), -1, 32)
    lowest, highest = groups.min(axis=2, keepdims=True), groups.max(axis=2, keepdims=True)
    scale = np.maximum(highest - lowest, 1e-30) / 15
    errors = np.rint((groups - lowest) / scale) * scale + lowest - groups
    return np.square(errors).sum(axis=2)


@examples(100)
@given(
    rows=st.integers(1, 5),
    num_groups=st.sampled_from([1, 2, 7, 11, 24]),
    tails=st.floats(1.5, 30),
    shift=st.floats(-0.1, 0.1),
    seed=st.integers(0, 2**32 - 1),
)
def test_no_row_is_much_further_off_than_rounded_to_nearest(
    rows: int, num_groups: int, tails: float, shift: float, seed: int
) -> None:
    values = np.random.default_rng(seed).standard_t(tails, (rows, num_groups * 32))
    values = (values * 0.02 + shift).astype(np.float32)
    found, nearest = squared_errors(values).sum(axis=1), rounded_to_nearest(values).sum(axis=1)
    # A single group may be unlucky with the steps that are tried; units that groups share take a little, a
    # 254th of the largest scale and offset.
    largest = np.abs(values).max(axis=1) ** 2 * values.shape[1] / 254**2
    assert (found <= 1.4 * nearest + largest).all()


def test_weights_of_a_network_are_closer_than_rounded_to_nearest() -> None:
    values = np.random.default_rng(0).normal(0, 0.02, (300, 768)).astype(np.float32)
    found = squared_errors(values).sum()
    assert found < 0.91 * rounded_to_nearest(values).sum()
    assert found < 0.0051 * np.square(values).sum()


@pytest.mark.parametrize("num_groups", [1, 3, 8, 20])
def test_a_lattice_of_the_engine_is_met_exactly(num_groups: int) -> None:
    """Its units are such that the largest scale and offset are 127 of them, as the quantizer chooses."""
    rng = np.random.default_rng(num_groups)
    codes = np.tile(np.arange(16, dtype=np.float32), (40, num_groups * 2))
    codes = rng.permuted(codes.reshape(40, num_groups, 32), axis=2)
    levels = rng.integers(20, 127, (2, 40, num_groups, 1)).astype(np.float32)
    shared = max(size for size in range(1, 9) if num_groups % size == 0)
    levels[:, :, ::shared] = 127
    values = (codes * levels[0] * 2**-12 - levels[1] * 2**-9).reshape(40, -1).astype(np.float32)
    linear = quantize_int4(values)
    assert np.array_equal(linear.to_float32(), values)
    assert linear.weight.dtype == "U8" and linear.weight.data.max() == 15 and linear.bits == 4


@pytest.mark.parametrize("value", [0.0, 0.375, -1e-3])
def test_equal_numbers_are_their_offset(value: float) -> None:
    values = np.full((3, 64), value, np.float32)
    assert quantize_int4(values).to_float32() == pytest.approx(values, rel=1e-3)


def test_scales_are_stored_as_bytes_and_halves() -> None:
    units, levels = quantize_int4(
        np.random.default_rng(0).normal(size=(16, 512)).astype(np.float32)
    ).short_scales()
    assert units.dtype == np.float16 and units.shape == (16, 2, 2)
    assert levels is not None and levels.shape == (16, 2, 16)


def test_blocks_of_rows_are_quantized_alike() -> None:
    values = np.random.default_rng(0).normal(size=(600, 1024)).astype(np.float32)
    whole, part = quantize_int4(values), quantize_int4(values[508:518])
    assert np.array_equal(whole.weight.data[508:518], part.weight.data)
    assert np.array_equal(whole.to_float32()[508:518], part.to_float32())


def projections() -> list[Linear]:
    """Return projections from 64 features, the last one in another form."""
    rng = np.random.default_rng(0)
    values = [rng.normal(size=(outputs, 64)).astype(np.float32) for outputs in (48, 16, 32)]
    return [quantize_int4(values[0]), quantize_int4(values[1]), quantize_int8(values[2])]


def test_neighbours_of_one_form_are_stacked_and_split_again() -> None:
    parts = projections()
    stacked = stack(parts)
    assert [len(each.weight.data) for each in stacked] == [64, 32]
    again = [*stacked[0].split([48, 16]), stacked[1]]
    for part, found in zip(parts, again, strict=True):
        assert np.array_equal(found.to_float32(), part.to_float32())
        assert found.bytes_per_step == part.bytes_per_step
    assert sum(each.bytes_per_step for each in stacked) == sum(part.bytes_per_step for part in parts)


@pytest.mark.parametrize(
    ("value", "expected"), [(2.0**-24, np.float16), (1e-9, np.float32), (1e6, np.float32)]
)
def test_scales_are_halves_only_where_nothing_is_lost(value: float, expected: type) -> None:
    integers = np.zeros((16, 32), np.int8)
    scale = np.full((16, 1), value, np.float32)
    units, levels = Linear(Tensor("I8", integers.shape, integers), scale).short_scales()
    assert units.dtype == expected and levels is None and np.array_equal(units[:, 0], scale)
