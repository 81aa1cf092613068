"""Tests of the sampling parameters that a checkpoint recommends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from build.checkpoints.engine_texts import engine_text_digests, read_engine_texts, write_engine_texts
from build.checkpoints.sampling_defaults_file import read_sampling_defaults
from pipelines.errors import CheckpointError

QWEN3 = {
    "bos_token_id": 151643,
    "do_sample": True,
    "eos_token_id": [151645, 151643],
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.95,
    "transformers_version": "4.51.0",
}


def write(directory: Path, document: Any) -> Path:
    (directory / "generation_config.json").write_text(json.dumps(document), encoding="utf-8")
    return directory


def test_recommended_values_reach_the_engine(tmp_path: Path) -> None:
    texts = read_engine_texts(write(tmp_path, QWEN3))
    assert list(texts) == ["sampling.json"] == list(engine_text_digests(texts))
    write_engine_texts(tmp_path, texts)
    written = json.loads((tmp_path / "sampling.json").read_text(encoding="utf-8"))
    assert written == {"temperature": 0.6, "top_k": 20, "top_p": 0.95}


def test_a_checkpoint_may_recommend_nothing(tmp_path: Path) -> None:
    assert read_sampling_defaults(tmp_path) is None
    assert read_sampling_defaults(write(tmp_path, {"eos_token_id": 2, "top_k": None})) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", "0.6"), ("top_k", 1.5), ("top_p", 1.1), ("top_p", 0), ("min_p", True), ("top_k", -1)],
)
def test_an_invalid_value_is_refused_with_its_name(name: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="invalid sampling parameter") as refused:
        read_sampling_defaults(write(tmp_path, {name: value}))
    assert refused.value.values.startswith(f"{name}=") and refused.value.remedy
