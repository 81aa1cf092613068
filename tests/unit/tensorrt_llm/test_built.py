"""Tests of the ``trtllm-build`` command, and of comparing what it built with the recipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from build.tensorrt_llm.check import check_built, differences
from build.tensorrt_llm.command import Paths, build_command
from build.tensorrt_llm.pair import Pair, read_pair
from tests.support.tensorrt_llm_1_2_1 import FLAGS, NUMBER, PATH, SET
from tests.unit.tensorrt_llm.test_engine import recipe_of
from tests.unit.tensorrt_llm.test_preflight import broken_pair


def built_engine(tmp_path: Path, pair: Pair, **build_config: Any) -> Path:
    """Write a target engine as the builder of 1.2.1 leaves it, then change it."""
    asked, serving = pair.target.requested, pair.recipe.serving
    plugin_config = {
        "use_paged_context_fmha": True,
        "tokens_per_block": 32,
        "multiple_profiles": False,
        "reduce_fusion": True,
    }
    built = {
        "max_batch_size": serving.max_batch_size,
        "max_seq_len": serving.max_seq_len + serving.max_draft_len,
        "max_num_tokens": pair.max_num_tokens,
        "max_beam_width": 1,
        "max_draft_len": serving.max_draft_len,
        "speculative_decoding_mode": 2,
        "kv_cache_type": "PAGED",
        "gather_context_logits": False,
        "gather_generation_logits": False,
        "plugin_config": plugin_config,
        **build_config,
    }
    network = {
        "architecture": asked.architecture,
        "dtype": "bfloat16",
        "logits_dtype": "float32",
        "num_hidden_layers": asked.num_layers,
        "num_attention_heads": asked.num_heads,
        "hidden_size": asked.hidden_size,
        "intermediate_size": asked.intermediate_size,
        "vocab_size": asked.vocab_size,
        "max_position_embeddings": 131072,
        "mapping": {"tp_size": 2, "pp_size": 1},
        "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": None},
    }
    directory = tmp_path / "built"
    directory.mkdir()
    document = {"version": "1.2.1", "pretrained_config": network, "build_config": built}
    (directory / "config.json").write_text(json.dumps(document), encoding="utf-8")
    for rank in range(2):
        (directory / f"rank{rank}.engine").write_bytes(b"plan")
    return directory


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_draft_len": 4}, "max_draft_len 4, expected 8"),
        ({"speculative_decoding_mode": 1}, "speculative_decoding_mode 1, expected 2"),
        ({"max_beam_width": 4}, "max_beam_width 4"),
        ({"gather_context_logits": True}, "gather_context_logits True"),
        ({"gather_generation_logits": True}, "gather_generation_logits True, expected False"),
        ({"kv_cache_type": "CONTINUOUS"}, "kv_cache_type CONTINUOUS"),
        ({"max_seq_len": 8192}, "max_seq_len 8192, expected 8200"),
        ({"plugin_config": {}}, "plugin_config.use_paged_context_fmha None, expected True"),
        ({}, ""),
    ],
)
def test_an_engine_is_compared_with_its_order(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    pair = broken_pair(tmp_path, {}, {})
    found = check_built(pair, {"target": built_engine(tmp_path, pair, **changes)})
    assert [finding.rule for finding in found] == (["built-as-asked"] if message else [])
    assert message in "\n".join(map(str, found))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda engine: (engine / "rank1.engine").unlink(), "rank1.engine is missing"),
        (lambda engine: (engine / "rank0.engine").write_bytes(b""), "rank0.engine is empty"),
        (lambda engine: (engine / "config.json").write_text("{"), "cannot be read"),
        (lambda engine: (engine / "config.json").write_text("{}"), "cannot be used"),
    ],
)
def test_a_damaged_engine_directory(damage: Any, message: str, tmp_path: Path) -> None:
    pair = broken_pair(tmp_path, {}, {})
    engine = built_engine(tmp_path, pair)
    damage(engine)
    (finding,) = check_built(pair, {"target": engine})
    assert message in finding.violation.message
    assert "checkpoint" not in finding.violation.message.partition(": ")[2]  # what is read is an engine


def test_an_engine_for_another_gpu_or_of_the_other_role(tmp_path: Path) -> None:
    pair = broken_pair(tmp_path, {}, {})
    engine = built_engine(tmp_path, pair)
    for gpu, message in (("h100-80gb", None), ("h200-141gb", "gpu h200-141gb, expected h100-80gb")):
        (engine / "manifest.json").write_text(json.dumps({"files": {}, "gpu": gpu}), encoding="utf-8")
        found = [finding.violation.message for finding in check_built(pair, {"target": engine})]
        assert found == ([f"{engine} does not match the recipe: {message}"] if message else [])
    found = differences(pair, pair.draft, engine)
    assert {"max_draft_len 8, expected 0", "gather_generation_logits False, expected True"} <= {*found}


def test_versions_and_quantization_of_an_engine(tmp_path: Path) -> None:
    pair = broken_pair(tmp_path, {}, {})
    engine = built_engine(tmp_path, pair)
    document = json.loads((engine / "config.json").read_text(encoding="utf-8"))
    document["version"] = "1.1.0"
    document["pretrained_config"]["quantization"]["kv_cache_quant_algo"] = "FP8"
    (engine / "config.json").write_text(json.dumps(document), encoding="utf-8")
    (finding,) = check_built(pair, {"target": engine})
    assert finding.violation.message.endswith(
        ": version 1.1.0, expected 1.2.1; kv_cache_quant_algo FP8, expected None"
    )


def command_of(tmp_path: Path, raw: dict[str, Any], role: str) -> dict[str, str]:
    pair = read_pair(recipe_of(tmp_path, raw), tmp_path / "engines")
    side = pair.draft if role == "draft" else pair.target
    paths = Paths(Path("/c"), Path("/o"), Path("/old"), Path("/new"))
    words = build_command(pair, side, paths)
    assert words[0] == "trtllm-build"
    found: dict[str, str] = {}
    for word in words[1:]:
        if word.startswith("--"):
            found[name := word[2:]] = ""
        else:
            assert not found[name], f"{name} has two values"
            found[name] = word
    return found


@pytest.mark.parametrize("section", [{}, {"reduce_fusion": True}])
@pytest.mark.parametrize("role", ["draft", "target"])
def test_every_flag_exists_in_1_2_1_with_that_value(
    role: str, section: dict[str, Any], tmp_path: Path, raw: dict[str, Any]
) -> None:
    raw[role]["tensorrt_llm"] = section
    for name, value in command_of(tmp_path, raw, role).items():
        allowed = FLAGS[name].values
        if isinstance(allowed, tuple):
            assert value in allowed, name
        elif allowed == SET:
            assert not value, name
        else:
            assert allowed in (NUMBER, PATH), name
            assert allowed == PATH or value.isdecimal(), name


def test_the_target_verifies_and_the_draft_does_not(tmp_path: Path, raw: dict[str, Any]) -> None:
    target, draft = (command_of(tmp_path, raw, role) for role in ("target", "draft"))
    assert target.pop("speculative_decoding_mode") == "draft_tokens_external"
    assert target.pop("max_draft_len") == "4"
    assert target.pop("opt_num_tokens") == str(16 * (4 + 1)), "a full batch with its draft tokens"
    assert draft.pop("gather_generation_logits") == "", "the target reads the draft's logits"
    assert target == draft
    expected = {
        "max_batch_size": "16",
        "max_seq_len": "1024",
        "max_input_len": "1023",
        "max_num_tokens": "1024",
        "max_beam_width": "1",
        "kv_cache_type": "paged",
        "use_paged_context_fmha": "enable",
        "use_fp8_context_fmha": "disable",
        "gemm_plugin": "disable",
        "logits_dtype": "float32",
        "input_timing_cache": "/old",
        "output_timing_cache": "/new",
    }
    assert {name: draft[name] for name in expected} == expected
    assert "gather_context_logits" not in target
