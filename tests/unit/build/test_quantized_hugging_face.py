"""Tests of engines of published quantized checkpoints, beside engines of the values that they mean."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.quality.engines import compile_network
from build.checkpoints.tensor_file import Float32Array, Tensor
from build.engines import build_engines
from build.networks.linear import Linear
from build.networks.network import Network, fit_vocabulary
from build.networks.source import open_network
from build.networks.weight_only import apply_quantization
from build.own_pair import write_recipe
from build.recipe import load_recipe
from pipelines.errors import CheckpointError
from tests.golden.families import save_family, token_ids
from tests.support.hugging_face_checkpoints import change_weights, make_hugging_face
from tests.support.network_engines import EXACT, count_rows_differing, mean_kl, prompt_logits
from tests.support.quantized_checkpoints import (
    GROUP,
    Packed,
    pack_awq,
    pack_compressed,
    pack_fp8,
    pack_gptq,
    pack_int8,
    quantize_checkpoint,
)
from tests.unit.build.test_quantized_forms import CONFIGS

_GPTQ = {"quant_method": "gptq", "group_size": GROUP, "checkpoint_format": "gptq"}
_W4A16 = CONFIGS["ct-w4a16"]["config_groups"]["group_0"]
_PACKED = {**_W4A16, "weights": {**_W4A16["weights"], "group_size": GROUP}}

# Family, configuration, packer, and projections that stay in floating point.
CASES: dict[str, tuple[str, dict[str, Any], Callable[[Float32Array], Packed], tuple[str, ...]]] = {
    "awq": ("llama-biases", {"quant_method": "awq", "bits": 4, "group_size": GROUP}, pack_awq, ("lm_head",)),
    "gptq-4-ordered": (
        "qwen2",
        {**_GPTQ, "bits": 4, "sym": False, "desc_act": True},
        partial(pack_gptq, bits=4, symmetric=False, ordered=True),
        (),
    ),
    "gptq-8": (
        "phi3",
        {**_GPTQ, "bits": 8, "sym": False, "desc_act": False},
        partial(pack_gptq, bits=8, symmetric=False),
        (),
    ),
    "compressed-tensors": (
        "olmo2",
        {**CONFIGS["ct-w4a16"], "config_groups": {"group_0": _PACKED}},
        pack_compressed,
        ("layers.0.", "down_proj", "lm_head"),
    ),
    "w8a8": ("mistral", CONFIGS["ct-w8a8"], pack_int8, ("lm_head",)),
    "fp8": (
        "qwen3",
        {"quant_method": "fp8", "weight_block_size": [GROUP, GROUP]},
        pack_fp8,
        ("o_proj", "lm_head"),
    ),
}


def save_quantized(case: str, directory: Path) -> dict[str, Float32Array]:
    """Save a quantized checkpoint, and return the values that it means."""
    family, config, pack, kept = CASES[case]
    save_family(family, directory)
    return quantize_checkpoint(directory, config, pack, *kept)


# By day test_row_rule.py has an engine of each form.
BY_DAY = ("awq", "gptq-4-ordered", "fp8", "compressed-tensors")


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.long] * (case not in BY_DAY)) for case in CASES]
)
def test_an_engine_computes_the_checkpoints_values_and_keeps_the_row_rule(case: str, tmp_path: Path) -> None:
    """The same family with these values in floating point is computed as by transformers."""
    ids = token_ids()
    values = save_quantized(case, tmp_path / "checkpoint")
    save_family(CASES[case][0], tmp_path / "float")
    change_weights(
        tmp_path / "float",
        lambda tensors: tensors.update(
            {key: Tensor.from_float32(each, "F32") for key, each in values.items()}
        ),
    )
    truth = compile_network(tmp_path / "truth", open_network(tmp_path / "float").read(), "none")
    network = open_network(tmp_path / "checkpoint").read()
    as_they_come = replace(network, config=replace(network.config, rounds_activations=False))  # of W8A8
    exact = compile_network(tmp_path / "exact", as_they_come, "checkpoint")
    logits = prompt_logits(exact, ids, 130)
    assert np.abs(logits - prompt_logits(truth, ids, 130)).max() < EXACT
    assert count_rows_differing(exact, ids) == 0
    rounded = compile_network(tmp_path / "rounded", network, "int8")  # activations too, and the head
    assert count_rows_differing(rounded, ids) == 0
    assert mean_kl(logits, prompt_logits(rounded, ids, 130)) < 0.05


def integers(network: Network, quantization: str) -> list[Any]:
    layer = apply_quantization(network, quantization, "checkpoint").layer(1)
    return [(linear.bits, linear.weight.dtype, linear.weight.data.copy()) for linear in layer.linears()]


@pytest.mark.parametrize(
    ("case", "kept", "changed"),
    [("awq", ("int4", "int8"), ()), ("gptq-8", ("int8",), ("int4",)), ("fp8", (), ("int8", "int4"))],
)
def test_a_recipe_changes_only_what_is_larger_than_it_asks_for(
    case: str, kept: tuple[str, ...], changed: tuple[str, ...], tmp_path: Path
) -> None:
    save_quantized(case, tmp_path / "checkpoint")
    network = open_network(tmp_path / "checkpoint").read()
    own = integers(network, "checkpoint")
    for quantization in kept:
        for (bits, dtype, data), other in zip(own, integers(network, quantization), strict=True):
            assert (bits, dtype) == other[:2] and (data == other[2]).all()
    for quantization in changed:
        assert {(bits, dtype) for bits, dtype, _ in integers(network, quantization)} == {
            (4, "U8") if quantization == "int4" else (8, "I8")
        }


def test_integers_stay_compressed_in_the_executed_graph(tmp_path: Path) -> None:
    save_quantized("gptq-4-ordered", tmp_path / "checkpoint")
    network = open_network(tmp_path / "checkpoint").read()
    engine = compile_network(tmp_path / "engine", network, "checkpoint")
    types = [
        node.get_rt_info()["runtimePrecision"].astype(str)
        for node in engine._network._compiled.get_runtime_model().get_ops()
        if node.get_rt_info()["layerType"].astype(str) == "FullyConnected"
    ]
    assert types.count("u4") == 5 * network.config.num_hidden_layers, types


def test_a_quantized_head_gets_the_targets_vocabulary(tmp_path: Path) -> None:
    save_quantized("gptq-8", tmp_path / "checkpoint")
    network = open_network(tmp_path / "checkpoint").read()
    assert network.lm_head.is_integer and network.lm_head.zero_point is not None
    ids = np.random.default_rng(1).integers(0, 448, 40).astype(np.int32)

    def logits_of(network: Network) -> Any:
        engine = compile_network(tmp_path / str(network.config.vocab_size), network, "checkpoint")
        return prompt_logits(engine, ids, 30)

    exact = logits_of(network)
    longer = logits_of(fit_vocabulary(network, 576))
    assert np.allclose(longer[:, :512], exact, atol=1e-4) and longer[:, 512:].max() < exact.min() - 1000
    assert np.allclose(logits_of(fit_vocabulary(network, 448)), exact[:, :448], atol=1e-4)


@pytest.mark.parametrize("change", [64, -64])
def test_a_scale_of_the_whole_head_stays(change: int, tmp_path: Path) -> None:
    network = open_network(make_hugging_face(tmp_path)).read()
    head = replace(network.lm_head, scale=np.array([[0.5]], np.float32), zero_point=np.array([[3]], np.int8))
    vocab_size = network.config.vocab_size + change
    fitted = fit_vocabulary(replace(network, lm_head=head), vocab_size).lm_head
    assert fitted.weight.shape[0] == vocab_size
    assert fitted.scale is not None and fitted.scale.tolist() == [[0.5]]
    assert fitted.zero_point is not None and fitted.zero_point.tolist() == [[3]]


def test_q_k_and_v_of_different_forms_stay_apart(tmp_path: Path) -> None:
    save_family("llama", tmp_path)
    quantize_checkpoint(tmp_path, CASES["awq"][1], pack_awq, "k_proj")
    layer = open_network(tmp_path).read().layer(0)
    assert [part.is_integer for part in layer.qkv] == [True, False, True]
    (joined,) = layer.with_linears(
        lambda part: Linear(Tensor("F32", part.weight.shape, part.to_float32()))
    ).qkv
    assert np.array_equal(joined.to_float32(), np.concatenate([part.to_float32() for part in layer.qkv]))


def test_a_bias_that_the_settings_do_not_ask_for_must_be_zero(tmp_path: Path) -> None:
    """Old versions of AutoGPTQ wrote such biases."""
    save_family("llama", tmp_path)
    pack = partial(pack_gptq, bits=4, symmetric=True)
    quantize_checkpoint(tmp_path, {**_GPTQ, "bits": 4, "sym": True, "desc_act": False}, pack)
    name = "model.layers.0.mlp.up_proj.bias"
    bias = np.zeros(384, np.float32)
    change_weights(tmp_path, lambda tensors: tensors.update({name: Tensor.from_float32(bias, "F16")}))
    assert open_network(tmp_path).read().layer(0).gate.bias is None
    bias[3] = 1
    change_weights(tmp_path, lambda tensors: tensors.update({name: Tensor.from_float32(bias, "F16")}))
    with pytest.raises(CheckpointError, match=r"up_proj\.bias is not zero"):
        open_network(tmp_path)


@pytest.mark.parametrize(
    ("config", "pack", "quantization", "group"),
    [
        (CASES["w8a8"][1], pack_int8, "checkpoint", "128"),
        (CASES["awq"][1], pack_awq, "checkpoint", "0"),
        (CASES["awq"][1], pack_awq, "int4", "128"),
        ({**CASES["awq"][1], "group_size": 64}, partial(pack_awq, group_size=64), "int4", "64"),
    ],
)
def test_activations_are_rounded_in_groups_of_the_weights(
    config: dict[str, Any],
    pack: Callable[[Float32Array], Packed],
    quantization: str,
    group: str,
    tmp_path: Path,
) -> None:
    """With ``checkpoint``, only W8A8 has rounded activations."""
    target, draft = make_hugging_face(tmp_path / "target"), make_hugging_face(tmp_path / "draft", seed=1)
    quantize_checkpoint(target, config, pack, "lm_head")
    path = write_recipe(str(target), str(draft), tmp_path / "mine.yaml", quantization, 512, 20e9)
    engine = Path(build_engines(load_recipe(path), tmp_path / "engines")["target"])
    properties = json.loads((engine / "engine.json").read_text())["compile_properties"]
    assert properties["DYNAMIC_QUANTIZATION_GROUP_SIZE"] == group


def test_small_groups_are_rounded_too_and_keep_the_row_rule(tmp_path: Path) -> None:
    save_family("llama-biases", tmp_path / "checkpoint")
    config = {**CASES["awq"][1], "group_size": 64}
    quantize_checkpoint(tmp_path / "checkpoint", config, partial(pack_awq, group_size=64), "lm_head")
    network = open_network(tmp_path / "checkpoint").read()
    ids = np.random.default_rng(1).integers(0, 512, 200, dtype=np.int32)
    exact = prompt_logits(compile_network(tmp_path / "exact", network, "checkpoint"), ids, 130)
    engine = compile_network(tmp_path / "rounded", network, "int4")
    rounded = prompt_logits(engine, ids, 130)
    assert 1e-6 < mean_kl(exact, rounded) < 0.05
    assert count_rows_differing(engine, ids) == 0
