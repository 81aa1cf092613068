"""Tests of gpt-oss: its settings, its experts in floating point and MXFP4, and how it gates them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset15 as ops

from benchmarks.quality.engines import compile_network
from build.checkpoints.tensor_file import Float32Array, Tensor
from build.networks.source import open_network
from build.openvino.decoder_graph import _clamped_swiglu
from build.openvino.operations import parameter
from build.recipe import EngineRecipe
from build.reference import load_reference
from tests.golden.families import save_family, token_ids
from tests.support.compiler import needs_compiler
from tests.support.hugging_face_checkpoints import change_config, change_weights
from tests.support.network_engines import EXACT, count_rows_differing, mean_kl, prompt_logits
from tests.support.quantized_checkpoints import pack_mxfp4


def save_in_mxfp4(directory: Path) -> dict[str, Float32Array]:
    """Save the family with experts in MXFP4; return the values that they mean, by input."""
    save_family("gpt_oss", directory)
    values: dict[str, Float32Array] = {}

    def pack(tensors: dict[str, Tensor]) -> None:
        for name in [name for name in tensors if name.endswith("_proj") and ".experts." in name]:
            by_output = tensors.pop(name).to_float32().swapaxes(1, 2)
            packed, meant = pack_mxfp4(by_output)
            values[name] = np.ascontiguousarray(meant.swapaxes(1, 2))
            tensors.update({f"{name}_{part}": tensor for part, tensor in packed.items()})

    change_weights(directory, pack)
    change_config(
        directory, quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    )
    return values


@pytest.mark.filterwarnings("ignore")  # of transformers
def test_the_reference_has_the_values_of_mxfp4(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    values = save_in_mxfp4(tmp_path)
    found = load_reference(EngineRecipe(str(tmp_path))).state_dict()
    assert len(values) == 8
    for name, expected in values.items():
        np.testing.assert_array_equal(found[name].numpy(), expected)


def test_the_gate_is_that_of_transformers_beyond_its_limits_too() -> None:
    torch = pytest.importorskip("torch")
    theirs = pytest.importorskip("transformers.models.gpt_oss.modeling_gpt_oss")
    gate, up = 6 * np.random.default_rng(0).standard_normal((2, 50, 64)).astype(np.float32)
    both = torch.tensor(np.stack([gate, up], axis=2).reshape(50, -1))
    experts = torch.nn.Module()
    experts.limit, experts.alpha = 7.0, 1.702
    expected = theirs.GptOssExperts._apply_gate(experts, both).numpy()
    ports = [parameter(name, [-1, 64], ov.Type.f32) for name in ("gate", "up")]
    model = ov.Model([ops.result(_clamped_swiglu(*ports))], ports, "gate")
    found = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})([gate, up])[0]
    assert np.abs(gate).max() > 7 and np.abs(up).max() > 7
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@needs_compiler
def test_experts_in_mxfp4_are_computed_without_another_rounding(tmp_path: Path) -> None:
    values = save_in_mxfp4(tmp_path / "checkpoint")
    save_family("gpt_oss", tmp_path / "float")
    meant = {key: Tensor.from_float32(each, "F32") for key, each in values.items()}
    change_weights(tmp_path / "float", lambda tensors: tensors.update(meant))
    network, same = (open_network(tmp_path / name).read() for name in ("checkpoint", "float"))
    for index in range(network.config.num_hidden_layers):
        for mine, other in zip(network.layer(index).mlp(), same.layer(index).mlp(), strict=True):
            assert mine.bits == 5 and np.array_equal(mine.to_float32(), other.to_float32())
            assert mine.bias is not None and np.array_equal(mine.bias, other.bias)
    ids = token_ids()
    truth = prompt_logits(compile_network(tmp_path / "truth", same, "none", "draftproof"), ids, 130)
    exact = compile_network(tmp_path / "exact", network, "none", "draftproof")
    assert np.abs(prompt_logits(exact, ids, 130) - truth).max() < EXACT
    for quantization in ("checkpoint", "int8"):
        engine = compile_network(tmp_path / f"in-{quantization}", network, quantization, "draftproof")
        assert count_rows_differing(engine, ids) == 0
        assert mean_kl(truth, prompt_logits(engine, ids, 130)) < 0.05


def test_experts_in_bf16_are_read_by_output(tmp_path: Path) -> None:
    save_family("gpt_oss", tmp_path)
    name = "model.layers.2.mlp.experts.gate_up_proj"
    stored: dict[str, Tensor] = {}

    def round_all(tensors: dict[str, Tensor]) -> None:
        for each in tensors:
            tensors[each] = Tensor.from_float32(tensors[each].to_float32(), "BF16")
        stored.update(tensors)

    change_weights(tmp_path, round_all)
    gate, up, _ = open_network(tmp_path).read().layer(2).mlp()
    assert gate.weight.dtype == "BF16"
    by_output = stored[name].to_float32().swapaxes(1, 2)
    assert np.array_equal(gate.to_float32(), by_output[:, ::2].reshape(gate.weight.shape))
    assert np.array_equal(up.to_float32(), by_output[:, 1::2].reshape(up.weight.shape))
    biases = stored[f"{name}_bias"].to_float32()
    assert up.bias is not None and np.array_equal(up.bias, biases[:, 1::2].ravel())
