"""Tests of the comparison of versions: the checkout's commit with itself, tiny engines, real servers."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
import yaml

from benchmarks.versions.__main__ import main
from tests.support.tiny_engines import build_tiny_pair

pytestmark = [pytest.mark.triton, pytest.mark.long]


def test_a_commit_compared_with_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    build_tiny_pair(tmp_path)
    recipe = tmp_path / "tiny-versions.yaml"
    engines = {
        role: {"checkpoint": str(tmp_path / f"{role}_checkpoint"), "kv_cache": {"num_blocks": 256}}
        for role in ("draft", "target")
    }
    serving = {"max_batch_size": 8, "max_num_tokens": 256, "max_seq_len": 512, "max_draft_len": 4}
    recipe.write_text(
        yaml.safe_dump({"name": recipe.stem, "runtime": "embedded", **engines, "serving": serving})
    )
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    assert main(["--before", "HEAD", "--recipe", str(recipe), "--pairs", "2"]) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["num_different"] == 0
    assert document["has_same_engines"]
    assert [(each["protocol"], each["num_at_once"]) for each in document["settings"]] == [
        *(("gRPC", 1), ("gRPC", 8), ("OpenAI", 1), ("OpenAI", 8))
    ]
    for each in document["settings"]:
        ratio = each["tokens_per_s_ratio"]
        assert 0.2 < ratio["low"] <= ratio["value"] <= ratio["high"] < 5  # the machine may be busy
        assert each["ttft_ms_before"] > 0
    assert document["starts_s"]["before"] > 0.5
    assert document["conditions"]["before"] == document["conditions"]["git_sha"]
    assert list(scratch.iterdir()) == []
