"""Tests of a pair with two tokenizers on real engines: its files, its logits, its answers and its speed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from build.engines import build_engines
from pipelines.executor.engine import Engine, load_engine
from pipelines.executor.step import Chunk, StepInputs, pack
from pipelines.manifest import EngineFiles
from tests.support.checkpoints import make_checkpoint
from tests.support.hugging_face_checkpoints import pair_recipe
from tests.support.partly_shared import share_part


def built(
    folder: Path,
    target: Path,
    draft: Path,
    quantization: str = "int8",
    report: Callable[[str], None] = lambda line: None,
) -> dict[str, Path]:
    """Build the engines of two checkpoints in a folder; return their directories."""
    folder.mkdir(exist_ok=True)
    sections = ({"checkpoint": str(each), "quantization": quantization} for each in (draft, target))
    found = build_engines(pair_recipe(folder, *sections), folder / "engines", report)
    return {role: Path(found[role]) for role in ("draft", "target")}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    make_checkpoint(folder / "target")
    share_part(folder / "target", folder / "draft", 1500)
    return folder


def test_the_engine_holds_the_map_and_the_targets_tokenizer(tiny: Path) -> None:
    lines: list[str] = []
    engines = built(tiny / "pair", tiny / "target", tiny / "draft", report=lines.append)
    assert any("1,500 of the target's 2,048 tokens" in line for line in lines)
    draft, target = (EngineFiles(engines[role]) for role in ("draft", "target"))
    assert draft.read("tokenizer.json") == target.read("tokenizer.json")
    assert len(json.loads(draft.read("token_map.json"))["draft_ids"]) == 2048
    assert "token_map.json" not in target.manifest["files"]
    both = ("tokenizer_identity_sha256", "tokenizer_sha256", "end_ids")
    assert all(draft.manifest[name] == target.manifest[name] for name in both), "rollouts compare these"


def test_another_map_makes_another_engine(tiny: Path, tmp_path: Path) -> None:
    one = built(tmp_path / "pair", tiny / "target", tiny / "draft")
    share_part(tiny / "target", tmp_path / "draft", 1500, seed=1)
    for name in ("config.json", "rank0.safetensors"):  # the same weights, whose tokens have other ids
        (tmp_path / "draft" / name).write_bytes((tiny / "draft" / name).read_bytes())
    other = built(tmp_path / "pair", tiny / "target", tmp_path / "draft")
    assert one["target"] == other["target"] and one["draft"] != other["draft"]


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_logits_are_those_of_equal_tokens_to_the_bit(tiny: Path, tmp_path: Path, quantization: str) -> None:
    pair = built(tmp_path / "pair", tiny / "target", tiny / "draft", quantization)
    own = built(tmp_path / "own", tiny / "draft", tiny / "draft", quantization)
    ids = np.random.default_rng(3).integers(0, 1500, 9).astype(np.int32)

    def logits_of(directory: Path) -> Any:
        engine = load_engine(EngineFiles(directory), 4)
        chunk = Chunk(ids, 0, (1,), is_decode=True, num_logits=len(ids))
        return engine.step(pack([chunk], engine.config.kv_block_size)).copy()

    selected, all_own = logits_of(pair["draft"]), logits_of(own["target"])
    assert selected.shape == (9, 2048) and all_own.shape == (9, 1500)
    read_as = json.loads((pair["draft"] / "token_map.json").read_text(encoding="utf-8"))["draft_ids"]
    equal = {token_id: read[0] for token_id, read in enumerate(read_as) if len(read) == 1}
    assert len(equal) == 1500 and (selected[:, list(equal)] == all_own[:, list(equal.values())]).all()
    assert np.isneginf(np.delete(selected, list(equal), axis=1)).all()


def test_an_engine_tries_its_kernels_with_tokens_that_it_reads(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The draft has logits for 2,048 tokens and embeddings for 1,500."""
    read: list[int] = []
    compute = Engine.run

    def noting(self: Engine, inputs: StepInputs, *others: Any) -> Any:
        read.extend(inputs.input_ids.tolist())
        return compute(self, inputs, *others)

    monkeypatch.setattr(Engine, "run", noting)
    load_engine(EngineFiles(built(tmp_path, tiny / "target", tiny / "draft")["draft"]), 4)
    assert read and max(read) < 1500
