"""Tests of a pair's acceptance over prompts, with the real loop on stand-ins of engines."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from pipelines.bench.calibration.acceptance import answer_prompts
from pipelines.errors import EngineFailedError
from pipelines.speculation.draft_length.draft_plan import FixedDraftLength
from tests.support.recording_engine import RecordingEngine, make_executor

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
