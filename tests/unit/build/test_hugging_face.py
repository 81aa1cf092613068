"""Tests of networks read from Hugging Face checkpoints, beside transformers, for every family."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.quality.engines import Logits, attention_for, compile_network
from build.checkpoints.tensor_file import Tensor, read_tensors, write_tensors
from build.hugging_face.config import parse_network_config
from build.networks.network import Network, fit_vocabulary, shorten_head
from build.networks.source import open_network
from build.networks.weight_only import apply_quantization
from pipelines.errors import CheckpointError
from tests.golden.families import (
    NUM_GREEDY,
    NUM_PROMPT,
    ROWS,
    config_of,
    greedy_of,
    logits_of,
    save_family,
    token_ids,
)
from tests.golden.make import compute_family
from tests.support.family_networks import FAMILY_CONFIGS
from tests.support.hugging_face_checkpoints import change_weights
from tests.support.network_engines import EXACT, count_rows_differing, greedy_tokens, mean_kl, prompt_logits

# Each of these has a part that the others lack; `make test-all` compiles them all.
DIFFERENT = (
    *("gemma2", "gemma3_text", "gpt_oss", "granite", "olmo2", "phi3"),
    *("qwen3", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe"),
)
EVERY_FAMILY = pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.long] * (name not in DIFFERENT)) for name in FAMILY_CONFIGS],
)


@EVERY_FAMILY
def test_every_family_is_computed_as_by_transformers_and_keeps_the_row_rule(
    name: str, tmp_path: Path
) -> None:
    ids, prompt = token_ids(), token_ids()[:NUM_PROMPT]
    save_family(name, tmp_path / "checkpoint")
    network = open_network(tmp_path / "checkpoint", 256).read()
    engines = {
        quantization: compile_network(
            tmp_path / quantization, network, quantization, attention_for(network.config)
        )
        for quantization in ("none", "int8", "int4")
    }
    logits = {key: prompt_logits(engine, ids, NUM_PROMPT) for key, engine in engines.items()}
    assert np.abs(logits["none"][ROWS] - logits_of(name)).max() < EXACT
    assert greedy_tokens(engines["none"], prompt, NUM_GREEDY) == greedy_of(name)
    assert [count_rows_differing(engine, ids) for engine in engines.values()] == [0, 0, 0]
    # Random weights lose more than trained ones.
    assert mean_kl(logits["none"], logits["int8"]) < 0.05
    assert mean_kl(logits["none"], logits["int4"]) < 1.0


@pytest.mark.long
@pytest.mark.xdist_group("torch")
@pytest.mark.filterwarnings("ignore")  # those of torch and transformers
@pytest.mark.parametrize("name", FAMILY_CONFIGS)
def test_the_golden_results_are_those_of_transformers(name: str) -> None:
    pytest.importorskip("torch")
    document, arrays = compute_family(name)
    assert json.loads(json.dumps(document))["config"] == config_of(name)
    np.testing.assert_allclose(logits_of(name), arrays["logits"], atol=EXACT)
    assert greedy_of(name) == arrays["greedy"].tolist()


@EVERY_FAMILY
def test_the_plugin_fuses_every_family(name: str, tmp_path: Path) -> None:
    """Norms, rotary embedding, attention and INT8 projections are one node each, with nothing left over."""
    save_family(name, tmp_path / "checkpoint")
    network = open_network(tmp_path / "checkpoint").read()
    attention = attention_for(network.config)
    engine = compile_network(tmp_path / "engine", network, "int8", attention)
    operations = engine._network._compiled.get_runtime_model().get_ops()
    kinds = Counter(node.get_rt_info()["layerType"].astype(str) for node in operations)
    layers = network.config.layers
    num_norms = sum(len(network.layer(index).norms()) for index in range(len(layers)))
    assert kinds["RMS"] == num_norms + 1
    assert kinds["RoPE"] == 2 * sum(layer.rotary is not None for layer in layers)
    assert kinds["PagedAttention"] == (len(layers) if attention == "openvino" else 0)
    # Experts have operations of ours, but for their router and the one that computes all tokens.
    of_experts = 6 if network.config.experts and network.config.experts.shared_size else 3
    assert kinds["FullyConnected"] == sum(of_experts if layer.has_experts else 5 for layer in layers) + 1
    assert kinds["Transpose"] == 0
    assert kinds["MatMul"] == len({layer.rotary for layer in layers} - {None})  # tables of angles
    # Weights stay int8 in memory; if the pattern were missed, they would be expanded to float32.
    primitives = {
        node.get_rt_info()["primitiveType"].astype(str)
        for node in operations
        if node.get_rt_info()["layerType"].astype(str) == "FullyConnected"
    }
    assert not any("ref" in primitive for primitive in primitives), primitives


@pytest.mark.parametrize("name", ["qwen2", "qwen3"])  # tied and not
def test_a_draft_gets_the_targets_vocabulary(name: str, tmp_path: Path) -> None:
    save_family(name, tmp_path / "checkpoint")
    network = open_network(tmp_path / "checkpoint").read()
    ids = np.random.default_rng(1).integers(0, 448, 40).astype(np.int32)

    def logits_of(network: Network) -> Logits:
        folder = tmp_path / str(network.config.vocab_size)
        return prompt_logits(compile_network(folder, network, "none"), ids, 30)

    exact = logits_of(network)
    longer = logits_of(fit_vocabulary(network, 576))
    assert (longer[:, :512] == exact).all()
    assert longer[:, 512:].max() < exact.min() - 1000, "no token has the new rows"
    assert (logits_of(fit_vocabulary(network, 448)) == exact[:, :448]).all()


def test_a_short_head_has_logits_of_the_first_tokens_and_of_special_ones(tmp_path: Path) -> None:
    save_family("qwen3", tmp_path / "checkpoint")
    network = apply_quantization(open_network(tmp_path / "checkpoint").read(), "int8", "int4")
    ids = np.random.default_rng(1).integers(0, 448, 40).astype(np.int32)
    map_of_another_tokenizer = replace(network, logit_rows=np.array([-1, 3, 400, 511], np.int32))
    short, mapped = (
        prompt_logits(compile_network(tmp_path / name, shorten_head(each, 300, special), "none"), ids, 30)
        for name, each, special in (
            ("short", network, (510, 511, 512)),  # Gemma 3 has a special token behind its vocabulary
            ("mapped", map_of_another_tokenizer, (0, 3, 511)),
        )
    )
    exact = prompt_logits(compile_network(tmp_path / "all", network, "none"), ids, 30)
    kept = [*range(300), 510, 511]
    assert (short[:, kept] == exact[:, kept]).all()
    assert np.isneginf(np.delete(short, kept, axis=1)).all() and short.shape == exact.shape
    assert (mapped[:, [1, 3]] == exact[:, [3, 511]]).all() and np.isneginf(mapped[:, [0, 2]]).all()
    assert shorten_head(network, 512, ()) is network


def settings_of(name: str, **changes: Any) -> dict[str, Any]:
    """The ``config.json`` of a family, with changes; null stays null."""
    return {**config_of(name), **changes}


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("llama", {"model_type": "phimoe"}, "a router that is not a softmax"),
        ("qwen3_moe", {"use_sliding_window": True}, "use_sliding_window=True"),
        ("qwen3_moe", {"num_experts_per_tok": 17}, "num_experts_per_tok=17"),
        ("qwen3_moe", {"mlp_only_layers": 1}, "mlp_only_layers=1"),
        ("olmoe", {"clip_qkv": 8.0}, "clip_qkv=8.0"),
        ("gpt_oss", {"swiglu_limit": 5.0}, "swiglu_limit=5.0"),
        ("qwen2_moe", {"qkv_bias": False}, "qkv_bias=False"),
        ("qwen2_moe", {"shared_expert_intermediate_size": None}, "shared_expert_intermediate_size"),
        ("llama", {"model_type": "bert"}, "not implemented"),
        ("llama", {"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ("llama", {"quantization_config": {"quant_method": "aqlm"}}, "quant_method='aqlm'"),
        ("llama", {"hidden_act": "relu"}, "hidden_act='relu'"),
        ("llama", {"num_key_value_heads": 3}, "multiple of num_key_value_heads"),
        ("llama", {"hidden_size": 0}, "hidden_size=0"),
        ("llama", {"tie_word_embeddings": "false"}, "tie_word_embeddings='false'"),
        ("llama", {"rope_parameters": "yarn"}, "rope_parameters='yarn'"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "linear", "rope_theta": None, "factor": 2}},
            "rope_theta=None",
        ),
        ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers=[1]"),
        ("smollm3", {"use_sliding_window": True, "sliding_window": 8}, "use_sliding_window=True"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "proportional", "rope_theta": 1e4}},
            "rope_type='proportional'",
        ),
        ("llama", {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, "low_freq_factor"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention=True"),
        ("llama", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50.0"),
        ("gemma2", {"attn_logit_softcapping": 0}, "attn_logit_softcapping=0"),
        ("gemma3_text", {"layer_types": ["linear_attention"] * 7}, "linear_attention"),
        ("qwen3_5_text", {"layer_types": ["sliding_attention"] * 4}, "sliding_attention"),
        ("qwen3_5_text", {"linear_conv_kernel_dim": 3}, "linear_conv_kernel_dim=3"),
        ("qwen3_5_text", {"attn_output_gate": False}, "attn_output_gate=False"),
        ("qwen3_5_text", {"linear_num_value_heads": None}, "linear_num_value_heads"),
    ],
)
def test_what_cannot_be_computed_is_refused(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        parse_network_config(settings_of(name, **changes), Path("config.json"))
    assert message in str(caught.value)
    assert caught.value.message and caught.value.remedy


def test_the_older_spelling_of_rotary_settings() -> None:
    """transformers 4 wrote ``rope_theta`` and ``rope_scaling``; most files on the hub have these."""
    llama = settings_of("llama")
    scaling = llama.pop("rope_parameters")
    older = {**llama, "rope_theta": scaling.pop("rope_theta"), "rope_scaling": scaling}
    path = Path("config.json")
    assert parse_network_config(older, path) == parse_network_config(settings_of("llama"), path)
    gemma = settings_of("gemma3_text")
    kinds = gemma.pop("rope_parameters")
    older = {
        **gemma,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "rope_scaling": {"rope_type": "linear", "factor": kinds["full_attention"]["factor"]},
    }
    assert parse_network_config(older, path) == parse_network_config(settings_of("gemma3_text"), path)


SIZES = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 3, "vocab_size": 512}
GPT_OSS = {"num_local_experts": 8, "num_experts_per_tok": 2, "num_attention_heads": 8}


@pytest.mark.filterwarnings("ignore")  # of transformers
@pytest.mark.parametrize(
    ("class_name", "ours"),
    [
        ("Gemma2ForCausalLM", {"model_type": "gemma2", **SIZES}),
        (
            "GptOssForCausalLM",
            {"model_type": "gpt_oss", **SIZES, **GPT_OSS, "max_position_embeddings": 131072},
        ),
    ],
)
def test_what_the_settings_leave_out_is_as_in_transformers(class_name: str, ours: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers")
    path, theirs = Path("config.json"), transformers.AutoConfig.for_model(**ours).to_dict()
    config = parse_network_config(ours, path)
    assert config == parse_network_config({**theirs, "architectures": [class_name]}, path)


def test_mistral_attends_to_4096_positions_unless_its_file_says_none() -> None:
    config = settings_of("mistral")
    del config["sliding_window"]
    path = Path("config.json")
    assert parse_network_config(config, path).layers[0].window == 4096
    assert parse_network_config({**config, "sliding_window": None}, path).layers[0].window is None


def test_weights_have_to_be_what_the_settings_ask_for(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoint"
    save_family("llama", directory)
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))

    def refused(**changes: Any) -> str:
        (directory / "config.json").write_text(json.dumps({**config, **changes}), encoding="utf-8")
        with pytest.raises(CheckpointError) as caught:
            network = open_network(directory).read()
            for index in range(network.config.num_hidden_layers):
                network.layer(index)
        return str(caught.value)

    assert "missing lm_head.weight" in refused(tie_word_embeddings=False)
    assert "missing model.layers.4.self_attn.q_proj.weight" in refused(num_hidden_layers=5)
    assert "not asked for: model.layers.3." in refused(num_hidden_layers=3)
    assert "[384, 256]" in refused(intermediate_size=400)
    assert "q_proj.bias" in refused(attention_bias=True)


@pytest.mark.parametrize(
    ("family", "tensor"),
    [
        *(("gpt_oss", f"1.self_attn.{name}") for name in ("sinks", "o_proj.bias")),
        *(("gpt_oss", f"1.mlp.{name}") for name in ("router.bias", "experts.down_proj_bias")),
        *(("qwen3_5_text", f"1.linear_attn.{name}.weight") for name in ("conv1d", "norm", "in_proj_a")),
        *(("qwen3_5_text", f"1.linear_attn.{name}") for name in ("A_log", "dt_bias")),
        *(("qwen3_moe", f"2.mlp.{name}.weight") for name in ("gate", "experts.15.up_proj")),
    ],
)
def test_a_missing_tensor_is_named(family: str, tensor: str, tmp_path: Path) -> None:
    save_family(family, tmp_path)
    change_weights(tmp_path, lambda tensors: tensors.pop(f"model.layers.{tensor}"))
    with pytest.raises(CheckpointError, match=re.escape(f"missing model.layers.{tensor}")):
        open_network(tmp_path)


@pytest.mark.parametrize("new", [False, True])
def test_the_text_model_of_a_model_that_sees_images(new: bool, tmp_path: Path) -> None:
    """Gemma 3 4B has settings under ``text_config``, other prefixes, and tensors of other parts."""
    text, directory = tmp_path / "text", tmp_path / "both"
    save_family("gemma3_text", text)
    config = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "text_config": json.loads((text / "config.json").read_text(encoding="utf-8")),
    }
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    tensors = {
        name.replace("model.", "model.language_model." if new else "language_model.model.", 1): tensor
        for name, tensor in read_tensors(text / "model.safetensors").items()
    }
    other = "model.vision_tower.x" if new else "vision_tower.x"
    write_tensors(directory / "model.safetensors", {**tensors, other: next(iter(tensors.values()))})
    found, expected = open_network(directory), open_network(text)
    assert found.config.layers == expected.config.layers
    (ours,), (theirs,) = found.read().layer(6).qkv, expected.read().layer(6).qkv
    assert (ours.weight.data == theirs.weight.data).all()


def test_a_head_of_its_own_is_used_also_where_the_settings_tie_it(tmp_path: Path) -> None:
    save_family("llama", tmp_path / "tied")
    stored = dict(read_tensors(tmp_path / "tied" / "model.safetensors"))
    embedding = stored["model.embed_tokens.weight"]
    other = Tensor(embedding.dtype, embedding.shape, embedding.data + 1)
    for name, head in (("same", embedding), ("other", other)):
        (tmp_path / name).mkdir()
        shutil.copyfile(tmp_path / "tied" / "config.json", tmp_path / name / "config.json")
        write_tensors(tmp_path / name / "model.safetensors", {**stored, "lm_head.weight": head})
        network = open_network(tmp_path / name).read()
        assert network.config.share_embedding_table == (name == "same")
        assert (network.lm_head.weight.data == head.data).all()


def test_pickles_and_missing_shards_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(settings_of("llama")), encoding="utf-8")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match="pickles"):
        open_network(tmp_path)
    index = {"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(CheckpointError, match="model-00001-of-00002"):
        open_network(tmp_path)
