"""Tests of the comparison with transformers: what passes, and the wrong targets that it must find."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from benchmarks.quality.engines import BLOCKS, compile_network, log_softmax
from build.checkpoints.settings import read_json
from build.checkpoints.tensor_file import read_tensors, write_tensors
from build.networks.network import Network
from build.networks.source import open_network
from build.recipe import EngineRecipe, load_recipe
from build.reference import _is_rounded, compute, load_reference
from pipelines.errors import CheckpointError
from pipelines.validation.reference import divergence, judge
from tests.golden.families import token_ids
from tests.support.checkpoints import make_checkpoint
from tests.support.family_networks import save_model
from tests.support.network_engines import greedy_tokens, prompt_logits
from tests.support.quantized_checkpoints import GROUP, pack_awq, quantize_checkpoint
from tests.support.tiny_engines import tiny_config
from tests.support.trained_tokenizers import sentencepiece_bpe

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of transformers


def swapped(network: Network) -> Network:
    def layer(index: int) -> object:
        found = network.layer(index)
        return dataclasses.replace(found, fc=found.gate, gate=found.fc)

    return dataclasses.replace(network, layer=layer)


def other_base(network: Network) -> Network:
    layers = tuple(
        dataclasses.replace(each, rotary=each.rotary and dataclasses.replace(each.rotary, base=5e5))
        for each in network.config.layers
    )
    return dataclasses.replace(network, config=dataclasses.replace(network.config, layers=layers))


@pytest.mark.parametrize(
    ("form", "plant", "expected"),
    [
        ("float", lambda network: network, "pass"),
        ("awq", lambda network: network, "pass"),
        ("float", swapped, "fail"),
        ("float", other_base, "fail"),
        ("awq", swapped, "fail"),
    ],
)
def test_a_wrong_mapping_is_told_from_the_right_one(
    form: str, plant: Callable[[Network], Network], expected: str, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    directory = tmp_path / "qwen3"
    save_model("qwen3", directory)
    sentencepiece_bpe().save(str(directory / "tokenizer.json"))
    if form == "awq":
        quantize_checkpoint(directory, AWQ, pack_awq)
    engine = compile_network(tmp_path / "engine", plant(open_network(directory, 256).read()), "none")
    prompt = token_ids()[:100]
    answer = greedy_tokens(engine, prompt, 64)
    assert len(BLOCKS) * 32 > 164
    text = np.concatenate([prompt, np.array(answer, np.int32)])
    server = log_softmax(prompt_logits(engine, text, 100))[99:-1]
    tops = [np.argsort(-row)[:20] for row in server]
    section = EngineRecipe(str(directory), quantization="none")
    recipe = dataclasses.replace(load_recipe("demo"), target=section)
    asked = [top.tolist() for top in tops]
    found = compute(recipe, [{"prompt": prompt.tolist(), "answer": answer, "asked": asked}])
    assert not found["is_rounded"]
    gaps = [best - own for best, own, *_ in found["rows"]]
    pairs = zip(found["rows"], server, tops, strict=True)
    divergences = [divergence(row[2:], of_server[top].tolist()) for row, of_server, top in pairs]
    assert judge(gaps, divergences, 0.01).verdict == judge(gaps, [], 0.01).verdict == expected
    assert judge(gaps, divergences, None).verdict == expected


AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model."])
@pytest.mark.parametrize("quantized", ["at the top", "in the text model", "not"])
def test_the_text_model_of_a_model_that_sees_images(quantized: str, prefix: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    text, both = tmp_path / "text", tmp_path / "both"
    save_model("gemma3_text-heads256", text, num_hidden_layers=1)
    if quantized != "not":
        quantize_checkpoint(text, AWQ, pack_awq)
    settings = read_json(text / "config.json")
    config: dict[str, object] = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3"}
    if quantized == "at the top":
        config["quantization_config"] = settings.pop("quantization_config")
    both.mkdir()
    (both / "config.json").write_text(json.dumps({**config, "text_config": settings}))
    tensors = read_tensors(text / "model.safetensors").items()
    renamed = {name.replace("model.", prefix, 1): tensor for name, tensor in tensors}
    write_tensors(both / "model.safetensors", renamed)
    alone, found = (load_reference(EngineRecipe(str(path))).state_dict() for path in (text, both))
    assert alone.keys() == found.keys()
    assert all((alone[name] == found[name]).all() for name in alone)


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral", "qwen2_moe"])
def test_experts_of_a_quantized_mixture(family: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    save_model(family, tmp_path, moe_intermediate_size=GROUP, shared_expert_intermediate_size=GROUP)
    exact = load_reference(EngineRecipe(str(tmp_path))).state_dict()
    quantize_checkpoint(tmp_path, AWQ, pack_awq)
    found = load_reference(EngineRecipe(str(tmp_path))).state_dict()
    assert exact.keys() == found.keys()
    for name, values in exact.items():
        assert (values - found[name]).abs().mean() < 0.2 * values.abs().mean(), name


def test_integers_of_a_tensorrt_llm_checkpoint_are_not_rounded_again(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    gate = make_checkpoint(tmp_path, "W8A16").layer(0).fc.to_float32()
    found = load_reference(EngineRecipe(str(tmp_path))).state_dict()
    assert np.array_equal(found["model.layers.0.mlp.gate_proj.weight"].numpy(), gate)


@pytest.mark.parametrize(
    ("config", "is_rounded"),
    [
        ({"quantization": None}, False),
        (tiny_config(quantization={"quant_algo": "FP8"}), True),
        ({"quantization_config": AWQ}, True),
        ({"text_config": {"quantization_config": AWQ}}, True),
    ],
)
def test_a_stored_quantization_is_seen_wherever_it_stands(
    config: dict[str, object], is_rounded: bool, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    target = EngineRecipe(str(tmp_path), quantization="checkpoint")
    assert is_rounded == _is_rounded(dataclasses.replace(load_recipe("demo"), target=target))


@pytest.mark.parametrize(
    ("gaps", "divergences", "tie", "verdict"),
    [
        ([0.0] * 90 + [0.5] * 10, [0.01] * 100, None, "pass"),
        ([0.0] * 80 + [0.5] * 20, [0.01] * 100, None, "fail"),
        ([0.0] * 100, [0.3] * 100, None, "fail"),
        ([0.0] * 99 + [0.2], [], 0.3, "pass"),
        ([0.0] * 99 + [0.4], [], 0.3, "fail"),
        ([0.0] * 10, [], 0.3, "inconclusive"),
        ([], [], None, "fail"),
    ],
)
def test_bars(gaps: list[float], divergences: list[float], tie: float | None, verdict: str) -> None:
    assert judge(gaps, divergences, tie).verdict == verdict


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(CheckpointError, match=r"(?s)torch.*make modelopt"):
        compute(load_recipe("demo"), [])
