"""Tests that a graph's products have the values of a projection, whoever computes them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import openvino as ov
import pytest
from openvino import opset15 as ops

from build.checkpoints.tensor_file import Tensor
from build.hugging_face.quantized.mxfp4 import linear_of
from build.networks.linear import Linear
from build.openvino.operations import Product, linear, openvino_product, parameter
from build.openvino.own_operators import own_product
from tests.support.compiler import needs_compiler

Floats = npt.NDArray[np.float32]


def with_offsets(bits: int, rng: np.random.Generator) -> Linear:
    """Return a projection from 512 to 72 features in groups of 32; two of them have no scale, or nothing."""
    numbers = rng.integers(0, 1 << bits, (72, 512)).astype(np.uint8)
    units = rng.uniform(1e-4, 1e-3, (72, 2, 2)).astype(np.float16).astype(np.float32)
    levels = rng.integers(-64, 64, (72, 2, 16)).astype(np.float32)
    levels[5, 0, 3] = levels[6, :, 7] = 0
    scale, offset = np.moveaxis(np.repeat(units, 8, axis=2) * levels, 1, 0)
    weight = Tensor("U8", numbers.shape, numbers)
    return Linear(weight, scale, bits=bits, offset=offset, units=units)


def with_zero_points(rng: np.random.Generator, least: int, most: int, bits: int = 4) -> Linear:
    """Return a projection from 512 to 72 features in groups of 128, as AWQ and GPTQ have them."""
    numbers = rng.integers(0, 1 << bits, (72, 512)).astype(np.uint8)
    zero_point = rng.integers(least, most + 1, (72, 4)).astype(np.uint8)
    scale = rng.uniform(1e-3, 1e-2, (72, 4)).astype(np.float16).astype(np.float32)
    return Linear(Tensor("U8", numbers.shape, numbers), scale, bits=bits, zero_point=zero_point)


def of_mxfp4(rng: np.random.Generator) -> Linear:
    """Return a projection from 512 to 72 features in groups of 32, with every code."""
    blocks = rng.integers(0, 256, (72, 256)).astype(np.uint8)
    return linear_of(blocks, rng.integers(118, 123, (72, 16)).astype(np.uint8))


def multiply(product: Product, weights: Linear, x: Floats) -> Floats:
    port = parameter("x", [-1, 1, 512], ov.Type.f32)
    model = ov.Model([ops.result(linear(port, weights, product))], [port], "projection")
    settings = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
    found: Floats = ov.Core().compile_model(model, "CPU", settings)([x[:, np.newaxis]])[0][:, 0]
    return found


@needs_compiler
@pytest.mark.parametrize("product", [own_product, openvino_product])
@pytest.mark.parametrize(
    "weights",
    [
        with_offsets(4, np.random.default_rng(1)),
        with_offsets(5, np.random.default_rng(1)),
        with_zero_points(np.random.default_rng(1), 0, 15),
        with_zero_points(np.random.default_rng(1), 8, 8),
        with_zero_points(np.random.default_rng(1), 128, 128, bits=8),
        of_mxfp4(np.random.default_rng(1)),
    ],
    ids=["offsets", "offsets of 5 bits", "zero points", "all zero points 8", "all zero points 128", "mxfp4"],
)
def test_a_product_has_the_values_of_its_groups(product: Product, weights: Linear) -> None:
    x = np.random.default_rng(0).standard_normal((9, 512)).astype(np.float32)
    found = multiply(product, weights, x)
    exact = x.astype(np.float64) @ weights.to_float32().T
    assert np.abs(found - exact).max() < (0.02 if product is own_product else 1e-5) * np.abs(exact).max()


@needs_compiler
@pytest.mark.parametrize("product", [own_product, openvino_product])
def test_an_input_alone_brings_each_number_of_mxfp4_to_the_bit(product: Product) -> None:
    """An input of 127 is rounded to itself."""
    weights = of_mxfp4(np.random.default_rng(2))
    found = multiply(product, weights, 127 * np.eye(512, dtype=np.float32))
    assert np.array_equal(found, 127 * weights.to_float32().T)
