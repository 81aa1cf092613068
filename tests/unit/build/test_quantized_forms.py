"""Tests of projections in the forms in which quantized checkpoints are published.

``published/`` holds projections that the packers of these forms wrote, with what their own libraries make of
them as ``expected``: AutoAWQ 0.2.9 (``awq*``), auto_gptq 0.7.1 (``gptq*``), compressed-tensors (``ct*``).
The values must be equal, not close. Zero points of ``gptq*-asym`` are at least 1: AutoGPTQ cannot pack 0.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from build.checkpoints.settings import Settings
from build.checkpoints.tensor_file import AnyArray, Float32Array, Tensor, read_tensors, write_tensors
from build.hugging_face.config import read_form
from build.hugging_face.quantized.form import Form
from build.hugging_face.quantized.mxfp4 import read_mxfp4
from build.hugging_face.weights import Weights
from build.networks.linear import Linear
from pipelines.errors import CheckpointError

PUBLISHED = Path(__file__).parent / "published"
CONFIGS: dict[str, dict[str, Any]] = json.loads((PUBLISHED / "configs.json").read_text(encoding="utf-8"))
OUTPUTS, INPUTS = 32, 64


def form_of(config: dict[str, Any]) -> Form:
    form = read_form({"quantization_config": config}, Path("config.json"))
    assert form is not None
    return form


def stored(name: str) -> dict[str, Tensor]:
    """The tensors of a published projection; ``expected`` is what it means."""
    tensors = read_tensors(PUBLISHED / "projections.safetensors")
    return {key.split(".")[1]: tensor for key, tensor in tensors.items() if key.split(".")[0] == name}


def read(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Linear:
    write_tensors(folder / "model.safetensors", {f"p.{name}": each for name, each in tensors.items()})
    weights = Weights(folder)
    linear = form_of(config).read(weights, "p", OUTPUTS, INPUTS)()
    weights.check_all_read(())
    return linear


def published(name: str) -> tuple[dict[str, Tensor], Float32Array]:
    tensors = stored(name)
    return tensors, tensors.pop("expected").to_float32()


@pytest.mark.parametrize("name", CONFIGS)
def test_a_projection_is_what_its_own_library_makes_of_it(name: str, tmp_path: Path) -> None:
    tensors, expected = published(name)
    linear = read(tmp_path, CONFIGS[name], tensors)
    assert (linear.to_float32() == expected).all()
    if "fp8" not in name:
        assert linear.is_weight_only, "its own integers"
        highest = int(linear.weight.data.max()) - int(linear.weight.data.min())
        assert linear.bits == (8 if "8" in name else 4) and highest < 1 << linear.bits


def adding_one(zeros: Tensor) -> Tensor:
    """Zero points as ``gptq_v2`` stores them."""
    return Tensor("I32", zeros.shape, (zeros.data.view(np.uint32) + np.uint32(0x11111111)).view(np.int32))


def test_gptq_stores_zero_points_less_one_unless_it_says_v2(tmp_path: Path) -> None:
    tensors, expected = published("gptq-4-asym")
    newer = {**tensors, "qzeros": adding_one(tensors["qzeros"])}
    config = {**CONFIGS["gptq-4-asym"], "checkpoint_format": "gptq_v2"}
    assert (read(tmp_path, config, newer).to_float32() == expected).all()
    older = {key: value for key, value in CONFIGS["gptq-4-asym"].items() if key != "checkpoint_format"}
    assert (read(tmp_path, older, tensors).to_float32() == expected).all()
    tensors, _ = published("gptq-4-sym")
    config = {**CONFIGS["gptq-4-sym"], "checkpoint_format": "gptq_v2"}
    with pytest.raises(CheckpointError, match="means the zero point 7"):
        read(tmp_path, config, tensors)


def test_a_zero_point_of_0_is_read_only_as_gptqmodel_writes_it(tmp_path: Path) -> None:
    """GPTQModel subtracts 1 from each integer of a word and lets 0 borrow from the next."""
    tensors, _ = published("gptq-4-asym")
    true_zeros = adding_one(tensors["qzeros"]).data.view(np.uint32) & np.uint32(0xFFFFFF0F)
    less_one = (true_zeros - np.uint32(0x11111111)).view(np.int32)
    tensors["qzeros"] = Tensor("I32", less_one.shape, less_one)
    config = CONFIGS["gptq-4-asym"]
    with pytest.raises(CheckpointError, match="loaders disagree"):
        read(tmp_path, config, tensors)
    for quantizer in ("gptqmodel:1.4.0", ["gptqmodel:7.7.0"]):
        linear = read(tmp_path, {**config, "meta": {"quantizer": quantizer}}, tensors)
        assert linear.zero_point is not None and linear.zero_point.dtype == np.uint8
        words = true_zeros.view(np.uint8)
        assert (linear.zero_point.T[:, 0::2] == (words & 15)).all()
        assert (linear.zero_point.T[:, 1::2] == words >> 4).all() and not linear.zero_point[1].any()


def test_an_order_of_inputs_needs_desc_act_and_groups_of_one_size(tmp_path: Path) -> None:
    tensors, _ = published("gptq-4-act")
    assert read(tmp_path, CONFIGS["gptq-4-act"], tensors).input_order is not None
    with pytest.raises(CheckpointError, match="desc_act is false"):
        read(tmp_path, CONFIGS["gptq-4-sym"], tensors)
    tensors["g_idx"] = Tensor("I32", (INPUTS,), (np.arange(INPUTS) > 4).astype(np.int32))
    with pytest.raises(CheckpointError, match="different sizes"):
        read(tmp_path, CONFIGS["gptq-4-act"], tensors)


@pytest.mark.parametrize("block", [[16, 32], [24, 48], [128, 128], None])
def test_fp8_is_multiplied_with_the_scale_of_its_block(block: list[int] | None, tmp_path: Path) -> None:
    """Blocks at the edges may be smaller."""
    weight = stored("ct-fp8-tensor")["weight"]
    rows, columns = block or (OUTPUTS, INPUTS)
    shape = (-(-OUTPUTS // rows), -(-INPUTS // columns)) if block else ()
    scale = np.random.default_rng(0).uniform(0.001, 0.01, shape).astype(np.float32)
    tensors = {"weight": weight, "weight_scale_inv": Tensor("F32", shape, np.asarray(scale))}
    linear = read(tmp_path, {"quant_method": "fp8", "weight_block_size": block}, tensors)
    spread = np.repeat(np.repeat(scale.reshape(-(-OUTPUTS // rows), -1), rows, 0), columns, 1)
    assert (linear.to_float32() == weight.to_float32() * spread[:OUTPUTS, :INPUTS]).all()


def test_fp8_without_a_block_size(tmp_path: Path) -> None:
    """Blocks are of 128 x 128 unless there is a ``weight_scale``, which vLLM reads, for the matrix."""
    tensors, expected = published("ct-fp8-tensor")
    assert (read(tmp_path, {"quant_method": "fp8"}, tensors).to_float32() == expected).all()
    scale = Tensor("F32", (1, 1), tensors.pop("weight_scale").data.reshape(1, 1))
    tensors["weight_scale_inv"] = scale
    assert (read(tmp_path, {"quant_method": "fp8"}, tensors).to_float32() == expected).all()
    assert form_of({"quant_method": "fp8"}).group_size == 128


@pytest.mark.parametrize("name", ["awq", "gptq-4-sym"])
def test_groups_that_do_not_divide_the_inputs_are_refused(name: str, tmp_path: Path) -> None:
    tensors, _ = published(name)
    tensors.pop("g_idx", None)
    with pytest.raises(CheckpointError, match="whole groups of inputs"):
        read(tmp_path, {**CONFIGS[name], "group_size": 48}, tensors)


@pytest.mark.parametrize("name", ["fp8", "ct-fp8-tensor", "ct-w8a8"])
def test_a_stored_scale_of_the_inputs_is_used(name: str, tmp_path: Path) -> None:
    config: dict[str, Any]
    if name == "fp8":
        tensors = stored("ct-fp8-tensor")
        config = {"quant_method": "fp8", "activation_scheme": "static"}
    else:
        tensors = stored(name)
        config = json.loads(json.dumps(CONFIGS[name]))
        inputs = config["config_groups"]["group_0"]["input_activations"]
        inputs.update(dynamic=False, strategy="tensor")
    del tensors["expected"]
    tensors["input_scale"] = Tensor("F32", (1,), np.array([0.25], np.float32))
    rounding = read(tmp_path, config, tensors).input_quantization
    assert rounding is not None and rounding.scale == 0.25
    assert rounding.dtype == ("I8" if name == "ct-w8a8" else "F8_E4M3")
    tensors["input_scale"] = Tensor("F32", (1,), np.array([np.nan], np.float32))
    with pytest.raises(CheckpointError, match="input_scale is nan"):
        read(tmp_path, config, tensors)


def test_names_come_before_classes_in_the_groups_of_compressed_tensors(tmp_path: Path) -> None:
    small = CONFIGS["ct-w4a16"]["config_groups"]["group_0"]
    large = CONFIGS["ct-w8a16"]["config_groups"]["group_0"]
    config = {
        **CONFIGS["ct-w4a16"],
        "config_groups": {"a": small, "b": {**large, "targets": ["re:.*down_proj$"]}},
    }
    form = form_of(config)
    assert form.bits == 8 and form.group_size == 32
    names = {"model.layers.0.mlp.down_proj": "ct-w8a16", "model.layers.0.mlp.up_proj": "ct-w4a16"}
    tensors = {f"{name}.{key}": each for name, case in names.items() for key, each in stored(case).items()}
    write_tensors(tmp_path / "model.safetensors", tensors)
    for name, case in names.items():
        linear = form.read(Weights(tmp_path), name, OUTPUTS, INPUTS)()
        assert (linear.to_float32() == stored(case)["expected"].to_float32()).all()
    config["config_groups"]["a"] = {**small, "targets": ["model.layers.1.mlp.up_proj"]}
    with pytest.raises(CheckpointError, match=r"model\.layers\.0\.mlp\.up_proj is quantized"):
        form_of(config).read(Weights(tmp_path), "model.layers.0.mlp.up_proj", OUTPUTS, INPUTS)


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|aa)+$b"])
def test_a_pattern_of_a_target_that_would_never_end_is_refused(pattern: str, tmp_path: Path) -> None:
    write_tensors(tmp_path / "model.safetensors", stored("ct-w4a16"))
    form = form_of(changed("ct-w4a16", "", targets=[f"re:{pattern}"]))
    with pytest.raises(CheckpointError, match="retry-limit"):
        form.read(Weights(tmp_path), "a" * 60, OUTPUTS, INPUTS)


def test_only_int8_with_dynamic_activations_asks_for_rounded_ones() -> None:
    assert [name for name, config in CONFIGS.items() if form_of(config).rounds_activations] == [
        "ct-w8a8",
        "ct-w8a8-asym",
    ]


def changed(name: str, part: str | None = None, **changes: Any) -> dict[str, Any]:
    """A configuration with other values, those of compressed-tensors in a part of its group."""
    config: dict[str, Any] = json.loads(json.dumps(CONFIGS[name]))
    section = config
    if part is not None:
        section = config["config_groups"]["group_0"]
        section = section[part] if part else section
    section.update(changes)
    return config


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quant_method": "bitsandbytes"}, "quant_method='bitsandbytes'"),
        ({"bits": 4}, "quant_method=None"),
        (changed("awq", bits=8), "bits=8"),
        (changed("awq", version="gemv"), "version='gemv'"),
        (changed("awq", backend="llm-awq"), "backend='llm-awq'"),
        (changed("awq", zero_point=False), "zero_point=False"),
        (changed("awq", group_size=0), "group_size=0"),
        (changed("gptq-4-sym", bits=3), "bits=3"),
        (changed("gptq-4-sym", checkpoint_format="marlin"), "checkpoint_format='marlin'"),
        (changed("gptq-4-sym", is_marlin_format=True), "is_marlin_format=True"),
        (changed("gptq-4-sym", dynamic={"+:.*down_proj": {"bits": 8}}), "dynamic="),
        (changed("gptq-4-sym", sym="yes"), "sym='yes'"),
        (changed("gptq-4-sym", meta=[1]), "meta=[1]"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "fmt='e5m2'"),
        ({"quant_method": "fp8", "weight_block_size": 128}, "weight_block_size=128"),
        ({"quant_method": "fp8", "activation_scheme": "other"}, "activation_scheme='other'"),
        (changed("ct-w4a16", "", format="marlin-24"), "format='marlin-24'"),
        (changed("ct-w4a16", kv_cache_scheme={"num_bits": 8}), "kv_cache_scheme="),
        (changed("ct-w4a16", transform_config={"config_groups": {"a": 1}}), "transform_config="),
        (changed("ct-w4a16", sparsity_config={"format": "sparse-24-bitmask"}), "sparse-24-bitmask"),
        (changed("ct-w4a16", quantization_status="frozen"), "quantization_status='frozen'"),
        (changed("ct-w4a16", config_groups={}), "config_groups=None"),
        (changed("ct-w4a16", config_groups={"W4A16": ["Linear"]}), "W4A16=['Linear']"),
        (changed("ct-w4a16", "", output_activations={"num_bits": 8}), "output_activations="),
        (changed("ct-w4a16", "", targets="Linear"), "targets='Linear'"),
        (changed("ct-w4a16", "", targets=["re:a)|(?:b"]), "targets='re:a)|(?:b'"),
        (changed("ct-w4a16", "weights", num_bits=2), "num_bits=2"),
        (changed("ct-w4a16", "weights", actorder="group"), "actorder='group'"),
        (changed("ct-w4a16", "weights", strategy="tensor_group"), "strategy='tensor_group'"),
        (changed("ct-w4a16", "weights", surprise=7), "surprise=7"),
        (changed("ct-fp8-block", "weights", block_structure=[16]), "block_structure=[16]"),
        (changed("ct-w8a8", "input_activations", num_bits=4), "num_bits=4"),
        (changed("ct-w8a8", "input_activations", dynamic="local"), "dynamic='local'"),
        (changed("ct-w8a8", "input_activations", dynamic=False), "strategy='token'"),
    ],
)
def test_what_is_not_understood_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        form_of(config)
    assert message in str(caught.value)
    assert caught.value.message and caught.value.remedy
    assert "quantization_config" in caught.value.message


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("awq", "qzeros", "missing p.qzeros"),
        ("gptq-4-sym", "scales", "missing p.scales"),
        ("ct-w4a16", "weight_shape", "missing p.weight_shape"),
        ("ct-w4a16-asym", "weight_zero_point", "missing p.weight_zero_point"),
        ("ct-fp8-block", "weight_scale", "missing p.weight_scale"),
    ],
)
def test_a_missing_tensor_is_named(name: str, tensor: str, message: str, tmp_path: Path) -> None:
    tensors, _ = published(name)
    del tensors[tensor]
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path, CONFIGS[name], tensors)


MXFP4 = read_mxfp4(Settings({}, Path()))
EXPERTS = 2


def mxfp4_tensors(exponents: AnyArray) -> dict[str, Tensor]:
    """Return experts with every pair of numbers, and these exponents, taken in turn."""
    shape = (EXPERTS, OUTPUTS, INPUTS // 32)
    blocks = np.resize(np.arange(256, dtype=np.uint8), (*shape, 16))
    exponents = np.resize(exponents.astype(np.uint8), shape)
    return {"p_blocks": Tensor("U8", blocks.shape, blocks), "p_scales": Tensor("U8", shape, exponents)}


def read_experts(folder: Path, tensors: dict[str, Tensor]) -> Linear:
    write_tensors(folder / "model.safetensors", tensors)
    assert MXFP4.read_experts is not None
    return MXFP4.read_experts(Weights(folder), "p", EXPERTS, OUTPUTS, INPUTS)()


@pytest.mark.parametrize(("first", "last"), [(0, 127), (128, 252), (104, 143)])
def test_mxfp4_has_the_values_of_transformers(first: int, last: int, tmp_path: Path) -> None:
    """Every pair of numbers and every power of two; the last ones are float16 too."""
    torch = pytest.importorskip("torch")
    mxfp4 = pytest.importorskip("transformers.integrations.mxfp4")
    assert form_of({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}) == MXFP4
    tensors = mxfp4_tensors(np.arange(first, last + 1))
    packed = (torch.tensor(each.data) for each in tensors.values())
    expected = mxfp4.convert_moe_packed_tensors(*packed, dtype=torch.float32).numpy().swapaxes(1, 2)
    linear = read_experts(tmp_path, tensors)
    assert np.array_equal(linear.to_float32(), expected.reshape(-1, INPUTS))
    assert (linear.bits, int(linear.weight.data.min()), int(linear.weight.data.max())) == (5, -12, 12)
    units, levels = linear.short_scales()
    assert levels is None and np.array_equal(units[:, 0].astype(np.float32), linear.scale)
    assert (units.dtype == np.float16) == (first == 104)


def test_mxfp4_beyond_float32_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="p_scales holds 253"):
        read_experts(tmp_path, mxfp4_tensors(np.array([120, 253])))
