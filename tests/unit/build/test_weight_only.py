"""Tests of quantization to 4 bits: scales, errors, and values that are integers already."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from build.checkpoints.tensor_file import Float32Array
from build.networks.weight_only import quantize_int4
from tests.support.examples import examples


def squared_errors(values: Float32Array, group_size: int) -> Float32Array:
    """Return the sum of squared errors of each group, [out, groups]."""
    errors = quantize_int4(values, group_size).to_float32() - values
    return np.square(errors).reshape(len(values), -1, group_size).sum(axis=2)


def rounded_to_nearest(values: Float32Array, group_size: int) -> Float32Array:
    """Return the same with the scale that cuts off nothing: the largest magnitude becomes -8."""
    groups = values.reshape(len(values), -1, group_size)
    extreme = np.take_along_axis(groups, np.abs(groups).argmax(axis=2)[:, :, None], axis=2)
    scale = np.where(extreme == 0, 1, extreme / -8).astype(np.float32)
    errors = np.clip(np.rint(groups / scale), -8, 7) * scale - groups
    return np.square(errors).sum(axis=2)


@examples(100)
@given(
    rows=st.integers(1, 5),
    num_groups=st.integers(1, 3),
    group_size=st.sampled_from([32, 64, 128]),
    tails=st.floats(1.5, 30),
    seed=st.integers(0, 2**32 - 1),
)
def test_no_group_is_further_off_than_rounded_to_nearest(
    rows: int, num_groups: int, group_size: int, tails: float, seed: int
) -> None:
    values = np.random.default_rng(seed).standard_t(tails, (rows, num_groups * group_size))
    values = (values * 0.02).astype(np.float32)
    nearest = rounded_to_nearest(values, group_size)
    assert (squared_errors(values, group_size) <= nearest * 1.0001 + 1e-12).all()


@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_weights_of_a_network_are_closer_than_rounded_to_nearest(group_size: int) -> None:
    values = np.random.default_rng(0).normal(0, 0.02, (300, 768)).astype(np.float32)
    ratio = squared_errors(values, group_size).sum() / rounded_to_nearest(values, group_size).sum()
    assert ratio < 0.95


def test_multiples_of_a_scale_are_exact_and_zeros_stay_zeros() -> None:
    codes = np.arange(-8, 8).repeat(16).reshape(2, 128).astype(np.float32)
    codes[:, 0] = -8, 8  # with the largest magnitude of either sign; 8 is written as -8 with a negative scale
    values = np.concatenate([codes * np.float32(0.25), np.zeros((2, 128), np.float32)], axis=1)
    linear = quantize_int4(values, 128)
    assert linear.weight.data.min() == -8 and linear.weight.data.max() <= 7 and linear.bits == 4
    assert np.array_equal(linear.to_float32(), values)
    assert (linear.scale == [[0.25, 1], [-0.25, 1]]).all()


def test_blocks_of_rows_are_quantized_alike() -> None:
    values = np.random.default_rng(0).normal(size=(1500, 64)).astype(np.float32)
    whole, part = quantize_int4(values, 32), quantize_int4(values[1020:1030], 32)
    assert np.array_equal(whole.weight.data[1020:1030], part.weight.data)
    assert whole.scale is not None and part.scale is not None
    assert np.array_equal(whole.scale[1020:1030], part.scale)
