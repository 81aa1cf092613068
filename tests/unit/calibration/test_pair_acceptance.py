"""Tests of a pair's acceptance over prompts, with the real loop on stand-ins of engines."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipelines.bench.calibration.__main__ import load_executors
from pipelines.bench.calibration.acceptance import answer_prompts
from pipelines.engine_memory import states_bytes
from pipelines.errors import EngineFailedError
from pipelines.speculation.draft_length.draft_plan import FixedDraftLength
from tests.support.compiler import needs_compiler
from tests.support.recording_engine import RecordingEngine, make_executor
from tests.support.tiny_engines import build_tiny_pair

PROMPTS = [np.array([3, 1 + number, 4], np.int32) for number in range(5)]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_draft_that_agrees_is_accepted(temperature: float) -> None:
    def pair(agreement: int) -> Any:
        draft = make_executor(RecordingEngine(256, salt=1, agreement=agreement, role="draft"))
        return answer_prompts(
            draft,
            make_executor(RecordingEngine(256)),
            PROMPTS,
            new_length=partial(FixedDraftLength, 3),
            max_tokens=20,
            temperature=temperature,
        )

    same, other = pair(16), pair(4)
    assert same.acceptance_rate == 1
    assert other.acceptance_rate < 0.5
    for mine, theirs in zip(same.token_ids, other.token_ids, strict=True):
        assert np.array_equal(mine, theirs)


def test_a_step_of_the_draft_that_fails_is_no_measurement() -> None:
    engine = RecordingEngine(256, salt=1, agreement=16, role="draft")
    engine.fail_next = True
    draft = make_executor(engine)
    target = make_executor(RecordingEngine(256))
    with pytest.raises(EngineFailedError, match="engine 'draft'"):
        answer_prompts(
            draft, target, PROMPTS, new_length=partial(FixedDraftLength, 3), max_tokens=20, temperature=0.0
        )


@needs_compiler
@pytest.mark.parametrize("max_batch_size", [1, 4])
def test_states_take_what_the_plan_of_the_server_has_for_them(tmp_path: Path, max_batch_size: int) -> None:
    pair = build_tiny_pair(tmp_path, target="hybrid", draft="self", attention="draftproof")
    draft, target = load_executors(*pair, max_rows=9 * max_batch_size)
    assert len(target.engine._states[0]) <= states_bytes(1, max_batch_size)
    answers = answer_prompts(
        draft, target, PROMPTS, new_length=partial(FixedDraftLength, 3), max_tokens=5, temperature=0.0
    )
    assert all(len(token_ids) == 5 for token_ids in answers.token_ids)
