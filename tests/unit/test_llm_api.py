"""The pair as the LLM API takes it: two YAML files with keys that exist, as the version spells them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from build.llm_api import decoding_type, main, write_llm_api
from build.recipe import load_recipe
from pipelines.errors import RecipeError
from tests.stand_in_machine import StandInMachine
from tests.unit.test_tensorrt_llm_preflight import broken_pair

# Fields of TorchLlmArgs, KvCacheConfig and DecodingBaseConfig: tensorrt_llm/llmapi/llm_args.py, a version of
# late 2025 (1.2 release candidates) with speculative_model_dir, and one of 2026 where it is an alias.
LLM_ARGUMENTS = {
    "model",
    "backend",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "max_batch_size",
    "max_num_tokens",
    "max_seq_len",
    "disable_overlap_scheduler",
    "kv_cache_config",
    "speculative_config",
}
KV_CACHE = {"enable_block_reuse", "tokens_per_block", "dtype", "free_gpu_memory_fraction"}
SPECULATION = {"decoding_type", "max_draft_len", "speculative_model_dir"}


def documents(tmp_path: Path, version: str = "1.3.0", **recipe: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    broken_pair(tmp_path, recipe, {})
    model, serve = write_llm_api(load_recipe(tmp_path / "broken.yaml"), version, tmp_path / "run")
    return yaml.safe_load(model.read_text()), yaml.safe_load(serve.read_text())


def test_both_files_hold_the_pair_in_keys_that_exist(tmp_path: Path) -> None:
    section = {"tp_size": 2, "kv_cache_dtype": "fp8", "kv_cache_free_gpu_mem_fraction": 0.8}
    model, serve = documents(tmp_path, target={"tensorrt_llm": section})
    triton = model.pop("triton_config")
    assert triton == {"max_batch_size": 0, "decoupled": True}
    assert set(model) == LLM_ARGUMENTS
    assert set(serve) == LLM_ARGUMENTS - {"model", "backend"}
    assert serve["kv_cache_config"].keys() == KV_CACHE
    assert serve["speculative_config"] == {
        "decoding_type": "Draft_Target",
        "max_draft_len": 8,
        "speculative_model_dir": str(tmp_path / "draft"),
    }
    assert set(serve["speculative_config"]) == SPECULATION
    assert model["model"] == str(tmp_path / "target")
    assert serve["disable_overlap_scheduler"] is True
    assert serve["tensor_parallel_size"] == 2


@pytest.mark.parametrize(
    ("version", "spelling"),
    [
        ("1.0.0", "DraftTarget"),
        ("1.1.0", "DraftTarget"),
        ("1.2.1", "Draft_Target"),
        ("1.3.0rc17", "Draft_Target"),
    ],
)
def test_the_spelling_follows_the_version(version: str, spelling: str, tmp_path: Path) -> None:
    assert decoding_type(version) == spelling
    assert documents(tmp_path, version)[1]["speculative_config"]["decoding_type"] == spelling


def test_the_files_say_that_weights_are_not_quantized_here(tmp_path: Path) -> None:
    documents(tmp_path)
    text = (tmp_path / "run" / "llama-3-3-70b-fp8" / "llm_api" / "trtllm-serve.yaml").read_text()
    assert "quantization (fp8) is not made here" in text


def test_a_tensorrt_llm_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="cannot be used by the LLM API"):
        write_llm_api(load_recipe("demo"), "1.3.0", tmp_path)


def test_the_version_that_is_installed_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = StandInMachine(tmp_path / "machine")
    monkeypatch.setenv("PATH", f"{machine.bin}:/usr/bin:/bin")
    broken_pair(tmp_path, {}, {})
    arguments = ["--recipe", str(tmp_path / "broken.yaml"), "--run", str(tmp_path / "run")]
    for version, extra in (("1.2.1", []), ("1.0.0", ["--trtllm-version", "1.0.0"])):
        assert main(arguments + extra) == 0
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["version"] == version
    machine.install("1.4.0", "trtllm-serve")
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["version"] == "1.4.0"
