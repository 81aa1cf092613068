"""A machine with a builder, and a pair of tiny checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.checkpoints import make_checkpoint, mapping_of
from tests.support.stand_in_machine import StandInMachine


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandInMachine:
    made = StandInMachine(tmp_path / "machine")
    monkeypatch.setenv("PATH", f"{made.bin}:/usr/bin:/bin")
    return made


@pytest.fixture
def raw(tmp_path: Path) -> dict[str, Any]:
    make_checkpoint(tmp_path / "target", "FP8", logits_dtype="float32", mapping=mapping_of(1), end_ids=[0, 7])
    make_checkpoint(tmp_path / "draft", "FP8", num_hidden_layers=1, mapping=mapping_of(1))
    return {
        "name": "tiny",
        "runtime": "tensorrt_llm",
        "target": {"checkpoint": str(tmp_path / "target"), "quantization": "checkpoint"},
        "draft": {"checkpoint": str(tmp_path / "draft"), "quantization": "checkpoint"},
        "serving": {"max_draft_len": 4},
    }
