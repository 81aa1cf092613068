"""Tests of the measurement of drafts with a part of the target's tokens, on real engines."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from benchmarks.token_overlap import __main__ as token_overlap_program
from benchmarks.token_overlap.__main__ import NUM_DRAFT_TOKENS, Draft, make_draft, measure
from build.recipe import load_recipe
from docs.figures.token_overlap import token_overlap
from pipelines.bench.calibration.pair_acceptance import Answers, answer_prompts
from pipelines.errors import EngineFailedError
from tests.unit.benchmarks.test_server_memory import CONDITIONS

PROMPTS = [np.arange(start, start + 20, dtype=np.int32) for start in (300, 400, 500)]


@pytest.fixture(scope="module")
def drafts(tmp_path_factory: pytest.TempPathFactory) -> list[Draft]:
    """Return the demonstration pair's draft as it is, with other ids, and with few tokens."""
    recipe = load_recipe("demo")
    small = dataclasses.replace(recipe, target=dataclasses.replace(recipe.target, growth=None))
    folder = tmp_path_factory.mktemp("drafts")
    return [make_draft(small, num_tokens, folder) for num_tokens in (None, 2048, 700)]


def test_other_ids_change_nothing_and_fewer_tokens_are_accepted_less(drafts: list[Draft]) -> None:
    assert [draft.share for draft in drafts] == [1.0, 1.0, pytest.approx(0.75, abs=0.01)]
    own, renumbered, fewer = measure(drafts, PROMPTS, 24)
    for how in ("greedy", "sampled"):
        assert own[how] == renumbered[how], "the noise is keyed by the target's tokens"
        assert 0 < fewer[how]["acceptance_rate"] < own[how]["acceptance_rate"]
        assert 1 < own[how]["mean_acceptance_length"] <= 1 + NUM_DRAFT_TOKENS
    assert all(0 < each["speed_up"]["low"] <= each["speed_up"]["high"] for each in (own, renumbered, fewer))
    about = {**CONDITIONS, "prompts": {"num_prompts": 3}}
    document = {"drafts": [own, fewer], "num_draft_tokens": 4, "max_tokens": 24, "conditions": about}
    text = token_overlap(document)
    assert "| 2,048, the target's ids | 100% |" in text and "| 700 | 75% |" in text


def test_an_answer_that_depends_on_its_draft_is_an_error(
    drafts: list[Draft], monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_token_off(*arguments: Any, num_draft_tokens: int, **others: Any) -> Answers:
        answers = answer_prompts(*arguments, num_draft_tokens=num_draft_tokens, **others)
        answers.token_ids[1][-1] += num_draft_tokens > 0
        return answers

    monkeypatch.setattr(token_overlap_program, "answer_prompts", one_token_off)
    with pytest.raises(EngineFailedError, match=r"not that of the target alone; draft with 700 .*\[1\]"):
        measure(drafts[2:], PROMPTS, 24)
