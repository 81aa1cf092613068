"""Tests of projections: what is stacked, split and stored in few bytes keeps its values."""

from __future__ import annotations

import numpy as np
import pytest

from build.checkpoints.tensor_file import Tensor
from build.networks.linear import Linear, stack
from build.networks.weight_only import quantize_int4, quantize_int8


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
