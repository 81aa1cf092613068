"""Tests of the ``trtllm-build`` command of each engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from build.tensorrt_llm.command import Paths, build_command
from build.tensorrt_llm.pair import read_pair
from tests.support.tensorrt_llm_1_2_1 import FLAGS, NUMBER, PATH, SET
from tests.unit.tensorrt_llm.test_engine import recipe_of


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
