"""Tests that engines compute a calibrated checkpoint correctly: weights and rounded inputs.

The reference is float64 numpy. Float32 sums sometimes fall on the other side of a rounding border, which
changes an input by a whole step, so logits are compared as distributions. Controls show the error that
leaving out the rounding would cause.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import openvino as ov
import pytest
from openvino import opset15 as ops

from build.hugging_face.quantized.tensorrt_llm import unpack_int4
from build.networks.linear import Linear
from build.networks.network import Network
from build.networks.source import open_network
from build.networks.weight_only import apply_quantization
from build.openvino.operations import linear, openvino_product, parameter
from pipelines.available_resources import has_avx2_alone
from pipelines.executor.loading import load_engine
from pipelines.executor.network import processor_properties
from pipelines.manifest import EngineFiles
from tests.support.checkpoints import (
    LLAMA3_SCALING,
    QUANTIZERS,
    build_checkpoint_engine,
    make_checkpoint,
    mean_kl,
    project,
    reference_logits,
)
from tests.support.tiny_engines import random_weights, tiny_config, write_checkpoint
from tests.unit.build.test_openvino_engine import EXACT, largest_error, run, token_ids

ROUNDS_INPUTS = ("FP8", "W8A8_SQ_PER_CHANNEL", "W4A8_AWQ")
SAME = 0.02  # nats; random weights spread every flip over all logits


def _without_input_rounding(network: Network) -> Network:

    def plain(linear: Linear) -> Linear:
        return replace(linear, input_quantization=None)

    return replace(network, layer=lambda index: network.layer(index).with_linears(plain))


@pytest.mark.parametrize("algo", QUANTIZERS)
def test_one_projection_is_what_numpy_says(algo: str, tmp_path: Path) -> None:
    """The inputs include E4M3 ties, saturation at both ends and zeros."""
    layer = make_checkpoint(tmp_path, algo, hidden_size=256).layer(0)
    rng = np.random.default_rng(1)
    x = (3 * rng.standard_normal((64, 1, 256))).astype(np.float32)
    x[0], x[1, 0, :8] = 0, [1e3, -1e3, 7, -7, 2**-20, -(2**-20), 0.109375, 0.1015625]
    for weights in (layer.qkv[0], layer.fc):
        port = parameter("x", [-1, 1, 256], ov.Type.f32)
        model = ov.Model([ops.result(linear(port, weights, openvino_product))], [port], "projection")
        settings = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
        settings.update(processor_properties(model))  # with AVX2 alone sums would be cut off
        found = ov.Core().compile_model(model, "CPU", settings)([x])[0][:, 0]
        expected = project(x[:, 0].astype(np.float64), weights)
        errors = np.abs(found - expected).max(axis=1) / np.abs(expected).max()
        assert (errors > 1e-6).sum() <= 2  # an input may lie on a border within float32
        assert errors.max() < 0.01


@pytest.mark.parametrize("algo", ROUNDS_INPUTS)
def test_inputs_are_rounded_to_the_scales_of_the_checkpoint(algo: str, tmp_path: Path) -> None:
    engine = load_engine(EngineFiles(build_checkpoint_engine(tmp_path, algo, hidden_size=256)), num_blocks=16)
    checkpoint = open_network(tmp_path / "checkpoint").read()
    logits = run(engine, token_ids())
    found = mean_kl(reference_logits(checkpoint, token_ids()), logits)
    control = mean_kl(reference_logits(_without_input_rounding(checkpoint), token_ids()), logits)
    print(f"{algo}: KL {found:.2e}, without rounding {control:.2e}")
    assert found < SAME
    assert control > 5 * found


@pytest.mark.parametrize("shape", [{"hidden_size": 256}, {"rotary_scaling": LLAMA3_SCALING}])
def test_int4_groups_are_exact(shape: dict[str, object], tmp_path: Path) -> None:
    engine = load_engine(EngineFiles(build_checkpoint_engine(tmp_path, "W4A16_AWQ", **shape)), num_blocks=16)
    reference = reference_logits(open_network(tmp_path / "checkpoint").read(), token_ids())
    assert largest_error(reference, run(engine, token_ids())) < EXACT


def test_smooth_quant_multiplies_integers(tmp_path: Path) -> None:
    """Otherwise it would be no faster than floating point."""
    engine = load_engine(
        EngineFiles(build_checkpoint_engine(tmp_path, "W8A8_SQ_PER_CHANNEL", hidden_size=256)), 16
    )
    operations = engine._network._compiled.get_runtime_model().get_ops()
    primitives = Counter(
        node.get_rt_info()["primitiveType"].astype(str)
        for node in operations
        if node.get_rt_info()["layerType"].astype(str) == "FullyConnected"
    )
    num_integer = sum(count for name, count in primitives.items() if name.endswith("i8"))
    assert num_integer == (0 if has_avx2_alone() else 5 * 2), primitives


@pytest.mark.parametrize("algo", [None, *QUANTIZERS])
def test_only_what_the_recipe_calls_int8_rounds_inputs_as_they_come(algo: str | None, tmp_path: Path) -> None:
    engine = build_checkpoint_engine(tmp_path, algo, hidden_size=256)
    assert '"DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"' in (engine / "engine.json").read_text()


def test_w8a16_in_floating_point_is_rounded_when_it_is_loaded(tmp_path: Path) -> None:
    """``build/quantize.py`` writes this form: TensorRT-LLM's loader rounds it, and so does ours."""
    config = tiny_config(quantization={"quant_algo": "W8A16", "kv_cache_quant_algo": None})
    write_checkpoint(tmp_path, config, random_weights(config))
    network = open_network(tmp_path).read()
    assert network.layer(0).qkv[0].scale is None
    rounded = apply_quantization(network, "checkpoint", "checkpoint")
    assert all(linear.is_weight_only and linear.bits == 8 for linear in rounded.layer(1).linears())
    assert apply_quantization(network, "none", "checkpoint").layer(0).qkv[0].weight.dtype == "BF16"


def test_int4_halves_are_signed_and_in_order() -> None:
    packed = np.array([[0x1F, -0x78]], np.int8)  # low half: outputs 0, 2, ...; -0x78 is 0x88
    expected: npt.NDArray[np.int8] = np.array([[-1, -8], [1, -8]], np.int8)
    assert np.array_equal(unpack_int4(packed), expected)


def test_int8_of_a_smoothed_checkpoint_forgets_the_smoothing(tmp_path: Path) -> None:
    network = make_checkpoint(tmp_path, "W8A8_SQ_PER_CHANNEL")
    before, after = network.layer(0).fc, apply_quantization(network, "int8", "int8").layer(0).fc
    assert after.is_weight_only and not before.is_weight_only
    error = np.linalg.norm(after.to_float32() - before.to_float32()) / np.linalg.norm(before.to_float32())
    assert error < 0.015
