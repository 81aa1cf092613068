"""Tests that rows have the bits of their expert's own product, whatever rows share its read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import openvino as ov
import pytest
from openvino import opset15 as ops

from build.checkpoints.tensor_file import Float32Array, Tensor
from build.networks.experts import ExpertSizes
from build.networks.linear import InputQuantization, Linear
from build.networks.weight_only import quantize_int4, quantize_int8
from build.openvino.operations import floats, linear, parameter
from build.openvino.own_experts import ChosenExperts
from build.openvino.own_operators import own_product
from pipelines.errors import EngineBuildError
from tests.support.compiler import needs_compiler

pytestmark = needs_compiler

COUNT, CHOSEN, INPUTS, OUTPUTS = 6, 2, 96, 32
SIZES = ExpertSizes(COUNT, CHOSEN, OUTPUTS, normalizes=True)


def as_floats(values: Float32Array) -> Linear:
    return Linear(Tensor("F32", values.shape, values))


FORMS = pytest.mark.parametrize(
    "form", [as_floats, quantize_int8, quantize_int4], ids=["none", "int8", "int4"]
)


def random(*shape: int, seed: int = 0) -> Float32Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


ROUTER = as_floats(random(COUNT, INPUTS, seed=5))


def compiled(
    inputs: dict[str, list[int]], build: Callable[..., list[ov.Node]]
) -> Callable[..., list[Float32Array]]:
    """Compile what a function makes of inputs of these shapes."""
    ports = [parameter(name, shape, ov.Type.f32) for name, shape in inputs.items()]
    model = ov.Model([ops.result(each) for each in build(*ports)], ports, "experts")
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
        "INFERENCE_NUM_THREADS": "2",
    }
    network = ov.Core().compile_model(model, "CPU", settings)
    return lambda *values: [found.copy() for found in network(list(values)).values()]


@FORMS
@pytest.mark.parametrize("rows_of_a_token", [1, CHOSEN])
def test_a_row_has_the_bits_of_its_experts_product(
    form: Callable[[Float32Array], Linear], rows_of_a_token: int
) -> None:
    weights = form(random(COUNT * OUTPUTS, INPUTS))
    each = weights.split([OUTPUTS] * COUNT)

    def build(tokens: ov.Node, x: ov.Node) -> list[ov.Node]:
        chosen = ChosenExperts(tokens, ROUTER, SIZES)
        return [chosen.linear(x, weights), ops.convert(chosen._experts, "f32")]

    together = compiled({"tokens": [-1, 1, INPUTS], "x": [-1, rows_of_a_token, INPUTS]}, build)
    alone = compiled({"x": [-1, 1, INPUTS]}, lambda x: [linear(x, one, own_product) for one in each])
    for count in (*range(1, 41), 150):
        x = random(count, rows_of_a_token, INPUTS, seed=count)
        found, experts = together(random(count, 1, INPUTS, seed=100 + count), x)
        assert found.shape == (count, CHOSEN, OUTPUTS)
        rows = np.repeat(x, CHOSEN // rows_of_a_token, axis=1).reshape(-1, 1, INPUTS)
        of_each = np.stack(alone(rows))[:, :, 0]  # [experts, rows, outputs]
        expected = of_each[experts.ravel().astype(int), np.arange(count * CHOSEN)].reshape(found.shape)
        if form is as_floats:  # which OpenVINO multiplies in another order
            np.testing.assert_allclose(found, expected, atol=1e-4)
        else:
            np.testing.assert_array_equal(found, expected)


@FORMS
@pytest.mark.parametrize("normalizes", [True, False])
def test_a_mixture_is_a_weighted_sum_and_keeps_the_row_rule(
    form: Callable[[Float32Array], Linear], normalizes: bool
) -> None:
    fc, proj = form(random(COUNT * OUTPUTS, INPUTS)), form(random(COUNT * INPUTS, OUTPUTS, seed=1))

    def build(x: ov.Node) -> list[ov.Node]:
        chosen = ChosenExperts(x, ROUTER, replace(SIZES, normalizes=normalizes))
        return [chosen.mixed(chosen.linear(ops.tanh(chosen.linear(x, fc)), proj))]

    mixture = compiled({"x": [-1, 1, INPUTS]}, build)
    x = random(40, 1, INPUTS, seed=2)
    (together,) = mixture(x)
    scores = x[:, 0].astype(np.float64) @ ROUTER.to_float32().T
    shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    shares *= shares >= np.sort(shares)[:, [-CHOSEN]]
    if normalizes:
        shares /= shares.sum(axis=1, keepdims=True)
    inner = np.tanh(np.einsum("ti,eoi->teo", x[:, 0], fc.to_float32().reshape(COUNT, OUTPUTS, INPUTS)))
    outer = np.einsum("teo,eio->tei", inner, proj.to_float32().reshape(COUNT, INPUTS, OUTPUTS))
    expected = np.einsum("te,tei->ti", shares, outer)
    tolerance = {as_floats: 1e-5, quantize_int8: 1e-3, quantize_int4: 0.05}[form]
    assert np.abs(together[:, 0] - expected).max() < tolerance * np.abs(expected).max()
    for count in range(
        2, 41
    ):  # a token alone has a dummy beside it, unless the network gives it the same bits
        np.testing.assert_array_equal(mixture(x[:count])[0], together[:count])
        np.testing.assert_array_equal(mixture(x[-count:])[0], together[-count:])


def test_all_rows_of_one_expert_share_its_read_and_others_are_not_touched() -> None:
    """A weight that is not finite would show in the rows that it is multiplied with."""
    values = random(COUNT * OUTPUTS, INPUTS)
    values[:OUTPUTS] = np.nan
    router = np.zeros((COUNT, INPUTS), np.float32)
    router[3], router[4] = 2, 1
    chosen_twice = compiled(
        {"x": [-1, 1, INPUTS]},
        lambda x: [ChosenExperts(x, as_floats(router), SIZES).linear(x, as_floats(values))],
    )
    x = np.abs(random(9, 1, INPUTS))
    (found,) = chosen_twice(x)
    each = values.reshape(COUNT, OUTPUTS, INPUTS)
    np.testing.assert_allclose(found, np.stack([x[:, 0] @ each[3].T, x[:, 0] @ each[4].T], axis=1), atol=1e-4)


@pytest.mark.parametrize(
    "change",
    [
        {"input_quantization": InputQuantization("I8", 0.1)},
        {"input_order": np.arange(INPUTS, dtype=np.int32)},
        {"prequant": np.ones(INPUTS, np.float32)},
    ],
)
def test_experts_that_cannot_be_multiplied_are_refused(change: dict[str, object]) -> None:
    weights = replace(quantize_int8(random(COUNT * OUTPUTS, INPUTS)), **change)  # type: ignore[arg-type]
    x = floats(np.zeros((1, 1, INPUTS)))
    with pytest.raises(EngineBuildError, match="experts of this checkpoint"):
        ChosenExperts(x, ROUTER, SIZES).linear(x, weights)
    with pytest.raises(EngineBuildError, match="24 outputs of an expert"):
        ChosenExperts(x, ROUTER, SIZES).linear(x, as_floats(random(COUNT * 24, INPUTS)))
