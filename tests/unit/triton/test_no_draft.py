"""Tests of the engine's process without a draft: it looks tokens up, and answers as the target alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipelines.manifest import EngineFiles, engine_digest
from pipelines.speculation.draft_length.rule import DraftLengths
from pipelines.speculation.request import GenerationRequest
from pipelines.triton.backend.parameters import ModelParameters
from pipelines.triton.engine.in_process_engines import InProcessEngines
from pipelines.triton.engine.speculative_answerer import DraftLengthSetting, SpeculativeAnswerer
from pipelines.wire.admission import Admission
from pipelines.wire.messages import EngineRequest
from tests.support.tiny_engines import build_tiny_pair

PROMPT = np.tile(np.arange(100, 130, dtype=np.int32), 4)
NUM_TOKENS = 40


def parameters_of(target: Path, folder: Path) -> ModelParameters:
    numbers = {"max_batch_size": 2, "max_num_tokens": 64, "max_seq_len": 256, "max_queue_size": 2}
    values = {
        "draft_engine_dir": "",
        "draft_engine_digest": "",
        "target_engine_dir": str(target),
        "target_engine_digest": engine_digest(EngineFiles(target).manifest),
        "draft_num_kv_blocks": "0",
        "target_num_kv_blocks": "64",
        "socket": str(folder / "speculative.sock"),
        "prompt_cache_dir": "",
        "prompt_cache_bytes": "0",
        "max_draft_len": "8",
        "num_draft_tokens": "adaptive",
        "draft_length_file": str(folder / "draft_length.json"),
    }
    return ModelParameters("speculative", {**values, **{key: str(each) for key, each in numbers.items()}})


@pytest.mark.parametrize("num_draft_tokens", [None, 3, 0])
def test_a_target_without_a_draft_looks_tokens_up(num_draft_tokens: int | None, tmp_path: Path) -> None:
    _, folder = build_tiny_pair(tmp_path / "pair")
    parameters = parameters_of(folder, tmp_path)
    engines, setting = InProcessEngines(parameters), DraftLengthSetting(parameters)
    target = engines.executors["target"]
    assert list(engines.executors) == ["target"] and target.times is not None
    lengths = DraftLengths(None, target.times, setting.max_draft_len)
    answerer = SpeculativeAnswerer(engines, Admission(2, 2), setting, lengths)

    async def answer() -> tuple[list[int], list[int], str, int]:
        alone = await target.complete(GenerationRequest("alone", PROMPT, NUM_TOKENS))
        asked = EngineRequest(
            input_ids=tuple(PROMPT.tolist()),
            max_tokens=NUM_TOKENS,
            num_draft_tokens=num_draft_tokens,
            prediction_ids=tuple(alone.token_ids.tolist()),
        )
        ids: list[int] = []
        async for chunk in answerer.answer(asked, GenerationRequest("asked", PROMPT, NUM_TOKENS)):
            ids += chunk.output_ids
        assert chunk.counts is not None
        return alone.token_ids.tolist(), ids, chunk.draft_length, chunk.counts.total_draft_tokens

    engines.start()
    try:
        alone, ids, used, num_drafted = engines.loop.spawn(answer()).result(60)
    finally:
        engines.loop.stop()
    assert ids == alone
    assert (num_drafted > 0) == (num_draft_tokens is None)
    if num_draft_tokens == 3:
        assert used.startswith("off: the pair has no draft model")
