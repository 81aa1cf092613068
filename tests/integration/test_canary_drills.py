"""Tests that bad candidates on a real server under load are rolled back unnoticed (all: make drills)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.canary.judge.limits import Limit
from tests.drills.rollouts import (
    CRASHING,
    DIVERGING,
    FAILING,
    GOOD,
    KILLED_UP,
    LESS_ACCEPTED,
    TOKENIZER,
    Drill,
    run_drill,
)
from tests.drills.setting import PLAN, Setting, drill_limits, questions_of
from tests.integration.conftest import MAX_BATCH_SIZE, MAX_DRAFT_LEN, MAX_QUEUE_SIZE, MAX_SEQ_LEN

pytestmark = [pytest.mark.triton, pytest.mark.drills]

ANY = Limit(5.0, 5.0)  # tiny engines on a shared machine: their speed does not matter here
LIMITS = replace(
    drill_limits(),
    answers=Limit(0.05, 0.01),
    errors=Limit(0.1, 0.003),  # a few requests are enough where nothing fails
    timeouts=Limit(0.3, 0.1),
    goodput=Limit(0.9, 0.9),
    acceptance_rate=Limit(0.1, 0.05),
    ttft=ANY,
    itl=ANY,
    e2e_tail=Limit(0.9, 0.9),
    pauses=Limit(0.9, 0.9),
    resources_s=5.0,
    memory=ANY,
    cpu_per_token=ANY,
)
SHADOW = replace(PLAN.shadow, min_pairs=120, bake_s=1.0)
QUESTIONS = questions_of((f"def f{number}():\n" for number in range(1000)), max_tokens=12)


@pytest.fixture
def setting(tiny_pair: tuple[Path, Path]) -> Setting:
    engine = {"checkpoint": "unused", "kv_cache": {"num_blocks": 128}}
    serving = {
        "max_batch_size": MAX_BATCH_SIZE,
        "max_num_tokens": 128,
        "max_seq_len": MAX_SEQ_LEN,
        "max_queue_size": MAX_QUEUE_SIZE,
        "max_draft_len": MAX_DRAFT_LEN,
        "num_draft_tokens": 4,
    }
    recipe = {"name": "tiny", "runtime": "embedded", "target": engine, "draft": engine, "serving": serving}
    plan = replace(
        PLAN,
        shadow=SHADOW,
        steps=(replace(PLAN.steps[0], min_pairs=20, bake_s=1.0),),
        max_pairs=3000,
        tick_s=0.5,
    )
    return Setting(recipe, *tiny_pair, QUESTIONS, plan, LIMITS)


@pytest.mark.parametrize(
    "drill",
    [DIVERGING, GOOD, TOKENIZER, CRASHING, LESS_ACCEPTED, FAILING, KILLED_UP],
    ids=lambda drill: drill.name,
)
def test_it_ends_as_it_has_to_and_no_client_notices(drill: Drill, setting: Setting, tmp_path: Path) -> None:
    # Within the limits above, shares as small as these may pass.
    if drill is FAILING:
        setting = replace(setting, limits=replace(LIMITS, errors=drill_limits().errors))
    if drill is DIVERGING:
        setting = replace(setting, limits=replace(LIMITS, answers=Limit(0.004, 0.001)))
    result = run_drill(drill, setting, tmp_path)
    assert result["faults"] == [], result
