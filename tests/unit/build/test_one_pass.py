"""Tests of drafts in one pass: what they compute beside transformers, and which are refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.quality.engines import NUM_BLOCKS, compile_network
from build.engines import build_engines
from build.networks.source import open_network
from build.own_pair import write_recipe
from build.preflight import check_settings
from build.recipe import load_recipe
from pipelines.errors import CheckpointError, IncompatiblePairError
from pipelines.executor.executor import Executor
from pipelines.executor.limits import ExecutorLimits
from pipelines.executor.step_loop import StepLoop
from pipelines.speculation.request import GenerationRequest
from pipelines.text.vocabulary import Vocabulary
from tests.support.family_networks import save_model
from tests.support.hugging_face_checkpoints import change_config, make_hugging_face, pair_recipe
from tests.support.network_engines import EXACT

MASK, NUM_PROMPT, LENGTH = 500, 40, 4
LIMITS = ExecutorLimits(
    max_batch_size=2, max_num_tokens=64, max_seq_len=256, max_queue_size=2, num_kv_blocks=NUM_BLOCKS
)


def expected_of(model: Any, known: list[int]) -> Any:
    """Return the logits of transformers after the last known token and after each mask token."""
    import torch

    with torch.no_grad():
        return model(torch.tensor([[*known, *[MASK] * (LENGTH - 1)]])).logits[0, -LENGTH:].numpy()


@pytest.mark.xdist_group("torch")
@pytest.mark.filterwarnings("ignore")  # those of torch and transformers
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_the_rows_are_those_of_transformers_and_mask_tokens_are_undone(family: str, tmp_path: Path) -> None:
    """Each proposal but the first reads tokens where the one before it had mask tokens."""
    pytest.importorskip("torch")
    model = save_model(family, tmp_path / "checkpoint")
    change_config(tmp_path / "checkpoint", pard_token=MASK)
    network = open_network(tmp_path / "checkpoint", 256).read()
    engine = compile_network(tmp_path / "engine", network, "none")
    assert engine.config.mask_token_id == MASK
    engine.config = replace(engine.config, role="draft")
    executor = Executor(engine, Vocabulary(tuple(b"%d " % token for token in range(512))), LIMITS)
    rng = np.random.default_rng(1)
    known = rng.integers(2, 490, NUM_PROMPT + 1).tolist()
    loop = StepLoop([executor])
    loop.start()
    try:
        for number, num_new in enumerate((3, LENGTH + 1, 1, LENGTH + 1, 2)):
            before = executor.num_steps
            asked = GenerationRequest(
                "test",
                np.array(known, np.int32),
                LENGTH,
                prompt_length=NUM_PROMPT,
                return_generation_logits=True,
            )
            found = loop.spawn(executor.complete(asked)).result(60)
            expected = expected_of(model, known)
            assert found.generation_logits is not None
            assert np.abs(found.generation_logits - expected).max() < EXACT
            assert found.token_ids.tolist() == expected.argmax(1).tolist()
            assert executor.num_steps == before + 1 or not number, "the first one reads the prompt, too"
            known += rng.integers(2, 490, num_new).tolist()
    finally:
        loop.stop()


def draft_of(folder: Path, **changes: Any) -> Path:
    directory = make_hugging_face(folder / "draft", "qwen2", seed=1, num_hidden_layers=1)
    change_config(directory, pard_token=100, **changes)
    return directory


def test_a_draft_in_one_pass_is_quantized_and_gets_a_short_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("build.own_pair.has_avx2_alone", lambda: True)
    monkeypatch.setattr("build.own_pair.has_operators", lambda: True)
    monkeypatch.setattr("build.own_pair._DRAFT_TOKENS", 50)
    target, lines = make_hugging_face(tmp_path / "target", "qwen2"), list[str]()
    path = write_recipe(
        str(target), str(draft_of(tmp_path)), tmp_path / "a.yaml", "int8", 64, 2e10, lines.append
    )
    assert any("several tokens in one pass" in line for line in lines)
    recipe = load_recipe(path)
    assert recipe.draft is not None
    assert (recipe.draft.lm_head_rows, recipe.draft.quantization) == (50, "int4")
    built = build_engines(recipe, tmp_path / "engines", lambda line: None)
    description = json.loads((Path(built["draft"]) / "engine.json").read_text())
    assert (description["mask_token_id"], description["quantization"]) == (100, "int4")


@pytest.mark.parametrize("token", [-1, 0, 2048, "mask", True])
def test_a_mask_token_that_is_none_is_refused(token: Any, tmp_path: Path) -> None:
    directory = draft_of(tmp_path)
    change_config(directory, pard_token=token)
    with pytest.raises(CheckpointError, match="pard_token="):
        open_network(directory, 64)


@pytest.mark.parametrize("rows", [2048, 2112])
def test_a_mask_token_needs_a_row_beside_those_of_the_target(rows: int, tmp_path: Path) -> None:
    """Draft and target of a family may be padded to different sizes; the draft gets the target's."""
    target = make_hugging_face(tmp_path / "target", "qwen2", vocab_size=rows)
    draft = make_hugging_face(tmp_path / "draft", "qwen2", seed=1, vocab_size=2112)
    change_config(draft, pard_token=2100)
    shutil.copy(target / "tokenizer.json", draft)
    recipe = pair_recipe(tmp_path, *({"checkpoint": str(each)} for each in (draft, target)))
    if rows > 2100:
        assert check_settings(recipe)[0] is not None
        return
    with pytest.raises(IncompatiblePairError, match="pard_token=2100, vocab_size=2048"):
        check_settings(recipe)
