"""Tests of preflight for TensorRT-LLM pairs: each rule is violated once, and every recipe passes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from build.preflight import main
from build.recipe import RECIPES, Recipe, load_recipe
from build.tensorrt_llm.check import RULES, check_pair
from build.tensorrt_llm.pair import Pair, read_pair
from build.tensorrt_llm.settings import GPUS
from pipelines.errors import CheckpointError
from tests.support.model_configs import CONFIGS, write_model
from tests.unit.build.test_preflight import change_tokenizer, swap_two_tokens

GPU_RECIPES = sorted(
    path.stem for path in RECIPES.glob("*.yaml") if load_recipe(path.stem).runtime == "tensorrt_llm"
)


def pair_of(recipe: Recipe, tmp_path: Path) -> Pair:
    return read_pair(recipe, tmp_path / "engines")


def with_models(recipe: Recipe, tmp_path: Path) -> Recipe:
    """Return the recipe with checkpoints that exist, without weights."""
    for name in CONFIGS:
        write_model(tmp_path / name, name)

    def moved(engine: Any) -> Any:
        return dataclasses.replace(engine, checkpoint=str(tmp_path / Path(engine.checkpoint).name))

    return dataclasses.replace(recipe, draft=moved(recipe.draft), target=moved(recipe.target))


@pytest.mark.parametrize("gpu", ["", *(f"-{name}" for name in GPUS)])
@pytest.mark.parametrize("name", GPU_RECIPES)
def test_our_recipes_pass_on_every_gpu(name: str, gpu: str, tmp_path: Path) -> None:
    recipe = with_models(load_recipe(name + gpu), tmp_path)
    assert recipe.name == name + gpu
    assert recipe.tensorrt_llm.gpu == (gpu.removeprefix("-") or "h100-80gb")
    assert [str(finding) for finding in check_pair(pair_of(recipe, tmp_path))] == []


# For each rule: the changes to a passing recipe and to the two models, as in a recipe, and the finding.
BREAKS: list[tuple[str, str, str, str]] = [
    ("version", "tensorrt_llm: {version: 1.3.0}", "", "June and July 2026"),
    ("version", "tensorrt_llm: {version: 1.1.0}", "", "not for version 1.1.0"),
    (
        "container",
        "tensorrt_llm: {container: 'nvcr.io/nvidia/tritonserver:25.12-trtllm-python-py3'}",
        "",
        "of another version",
    ),
    ("container", "tensorrt_llm: {container: registry.example/trtllm}", "", "nor a fixed tag"),
    ("checkpoint", "target: {quantization: checkpoint}", "", "does not read a Hugging Face"),
    ("vocab-size", "", "draft: {vocab_size: 128000}", "set draft.pad_vocab_size_to: 128256"),
    ("vocab-size", "", "target: {vocab_size: 128000}", "set target.pad_vocab_size_to: 128256"),
    ("vocab-padding", "draft: {pad_vocab_size_to: 1000}", "", "below vocab_size=128256"),
    ("tokenizer", "", "{draft: {vocab_size: 100}, target: {vocab_size: 100}}", "vocab_size=100"),
    (
        "kv-cache-type",
        "target: {quantization: int8_sq, tensorrt_llm: {tp_size: 2, kv_cache_dtype: fp8}}",
        "",
        "weights in W8A8_SQ_PER_CHANNEL",
    ),
    (
        "kv-cache-type",
        "draft: {quantization: none, tensorrt_llm: {kv_cache_dtype: fp8}}",
        "",
        "weights in bfloat16",
    ),
    ("reduce-fusion", "draft: {tensorrt_llm: {reduce_fusion: true}}", "", "tp_size=1"),
    ("reduce-fusion", "", "target: {architectures: [Qwen2ForCausalLM]}", "architecture Qwen2ForCausalLM"),
    ("positions", "", "target: {max_position_embeddings: 8192}", "serving.max_seq_len: 8184"),
    ("positions", "", "draft: {max_position_embeddings: 8191}", "serving.max_seq_len: 8191"),
    ("split", "target: {tensorrt_llm: {tp_size: 7}}", "", "tp_size=7 does not divide num_attention_heads=64"),
    (
        "split",
        "target: {quantization: int4_awq, tensorrt_llm: {tp_size: 2}}",
        "target: {intermediate_size: 28800}",
        "14400",
    ),
    ("split", "draft: {tensorrt_llm: {pp_size: 17}}", "", "num_hidden_layers=16"),
    (
        "devices",
        "target: {tensorrt_llm: {tp_size: 2, gpu_device_ids: [1, 1]}}",
        "",
        "tp_size x pp_size = 2 ranks",
    ),
    ("devices", "target: {tensorrt_llm: {tp_size: 2, gpu_device_ids: [7, 8]}}", "", "0 to 7"),
    ("memory", "target: {tensorrt_llm: {tp_size: 1}}", "", "has too little memory"),
    (
        "memory",
        "{target: {tensorrt_llm: {tp_size: 2, kv_cache_free_gpu_mem_fraction: 0.99}}, "
        "draft: {tensorrt_llm: {kv_cache_free_gpu_mem_fraction: 0.9}}}",
        "",
        "0 tokens in both KV caches",
    ),
]


def broken_pair(tmp_path: Path, recipe: dict[str, Any], models: dict[str, Any]) -> Pair:
    raw = yaml.safe_load((RECIPES / "llama-3-3-70b-fp8.yaml").read_text(encoding="utf-8"))
    for section, values in recipe.items():
        raw[section] = {**raw[section], **values}
    for role in ("draft", "target"):
        directory = tmp_path / role
        write_model(directory, Path(raw[role]["checkpoint"]).name, **models.get(role, {}))
        raw[role]["checkpoint"] = str(directory)
    path = tmp_path / "broken.yaml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    return pair_of(load_recipe(path), tmp_path)


@pytest.mark.parametrize(("rule", "recipe", "models", "message"), BREAKS)
def test_each_rule_is_found_broken(rule: str, recipe: str, models: str, message: str, tmp_path: Path) -> None:
    found = check_pair(broken_pair(tmp_path, yaml.safe_load(recipe) or {}, yaml.safe_load(models) or {}))
    texts = [str(finding) for finding in found if finding.rule == rule]
    assert any(message in text for text in texts), "\n".join(map(str, found))
    for finding in found:
        assert all(finding.as_dict().values()), finding


def test_the_recipe_that_they_break_passes(tmp_path: Path) -> None:
    assert check_pair(broken_pair(tmp_path, {}, {})) == []


# These need a file that is not the recipe's.
BROKEN_ELSEWHERE = {"logits-dtype", "qwen-type"}


def test_no_rule_goes_untested() -> None:
    assert {rule for rule, *_ in BREAKS} | BROKEN_ELSEWHERE == {rule.name for rule in RULES}


def test_swapped_tokens_are_another_tokenizer(tmp_path: Path) -> None:
    broken_pair(tmp_path, {}, {})
    change_tokenizer(tmp_path / "draft", swap_two_tokens)
    pair = pair_of(load_recipe(tmp_path / "broken.yaml"), tmp_path)
    (finding,) = check_pair(pair)
    assert finding.rule == "tokenizer"
    assert finding.violation.message.endswith(
        "draft/tokenizer.json and " + str(tmp_path / "target/tokenizer.json")
    )


def test_qwen_without_its_padding(tmp_path: Path) -> None:
    recipe = with_models(load_recipe("qwen2-5-32b-fp8"), tmp_path)
    bare = dataclasses.replace(recipe, draft=dataclasses.replace(recipe.draft, pad_vocab_size_to=None))
    (finding,) = check_pair(pair_of(bare, tmp_path))
    assert finding.rule == "vocab-size"
    assert finding.violation.message.endswith(": draft 151936, target 152064")
    assert "draft.pad_vocab_size_to: 152064" in finding.violation.remedy


def quantized(tmp_path: Path, recipe: Recipe, role: str, **changes: Any) -> Path:
    """Write a checkpoint as ``draftproof quantize`` leaves it, without weights."""
    side = getattr(pair_of(recipe, tmp_path), role)
    asked = side.requested
    config = {
        "architecture": asked.architecture,
        "qwen_type": "qwen2",
        "dtype": "bfloat16",
        "num_hidden_layers": asked.num_layers,
        "num_attention_heads": asked.num_heads,
        "num_key_value_heads": asked.num_kv_heads,
        "head_size": asked.head_size,
        "hidden_size": asked.hidden_size,
        "intermediate_size": asked.intermediate_size,
        "vocab_size": asked.vocab_size,
        "max_position_embeddings": 131072,
        "mapping": {"tp_size": asked.tp_size, "pp_size": 1, "world_size": asked.tp_size},
        "quantization": {"quant_algo": asked.quant_algo, "kv_cache_quant_algo": None},
        **changes,
    }
    folder = tmp_path / "engines" / recipe.name / "checkpoints" / f"{role}-0123456789abcdef"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "manifest.json").write_text("{}", encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("changes", "rule", "message"),
    [
        ({}, None, ""),
        ({"vocab_size": 151936}, "checkpoint", "vocab_size 151936, expected 152064"),
        ({"quantization": {"quant_algo": "W8A16"}}, "checkpoint", "quant_algo W8A16, expected FP8"),
        ({"mapping": {"tp_size": 2, "pp_size": 1}}, "checkpoint", "tp_size 2, expected 1"),
        ({"logits_dtype": "float16"}, "logits-dtype", "logits_dtype=float16"),
        ({"qwen_type": None}, "qwen-type", "qwen_type=None, architecture Qwen2ForCausalLM"),
    ],
)
def test_once_quantized_the_checkpoint_itself_is_read(
    changes: dict[str, Any], rule: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = with_models(load_recipe("qwen2-5-32b-fp8"), tmp_path)
    made = quantized(tmp_path, recipe, "draft", **changes)
    monkeypatch.setattr("build.tensorrt_llm.pair.checkpoint_for", lambda recipe, role, engines: made)
    found = check_pair(pair_of(recipe, tmp_path))
    assert rule in {finding.rule for finding in found} if rule else found == []
    assert message in "\n".join(map(str, found))


def run(tmp_path: Path, *arguments: str) -> int:
    return main(
        [
            *("--recipe", str(tmp_path / "broken.yaml")),
            *("--engines", str(tmp_path / "engines")),
            *("--run", str(tmp_path / "run")),
            *arguments,
        ]
    )


def test_the_command_prints_the_plan_of_both_gpus_and_stores_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken_pair(tmp_path, {}, {})
    assert run(tmp_path) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    document = json.loads(last)
    assert (tmp_path / "run" / "llama-3-3-70b-fp8" / "preflight.json").read_text() == (
        json.dumps(document, indent=2) + "\n"
    )
    assert [plan["gpu"] for plan in document["memory_plans"]] == ["h100-80gb", "h200-141gb"]
    assert document["findings"] == []
    assert document["rules"] == len(RULES)
    assert "not measured" in lines[0]
    assert (
        lines[-1]
        == f"{len(RULES)} rules checked, 0 violations; draft to be quantized, target to be quantized"
    )


def test_the_command_fails_and_prints_all_findings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken_pair(tmp_path, {"draft": {"tensorrt_llm": {"reduce_fusion": True}}}, {"draft": {"vocab_size": 9}})
    assert run(tmp_path) == 1
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {"vocab-size", "tokenizer", "reduce-fusion"} == {
        finding["rule"] for finding in document["findings"]
    }


def test_a_checkpoint_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--recipe", "llama-3-1-8b-fp8", "--run", str(tmp_path)]) == 1
    assert "download the checkpoint to this directory" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"architectures": ["LlamaForCausalLM"]}'])
def test_a_config_that_says_nothing(content: str, tmp_path: Path) -> None:
    broken_pair(tmp_path, {}, {})
    (tmp_path / "draft" / "config.json").write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        pair_of(load_recipe(tmp_path / "broken.yaml"), tmp_path)
