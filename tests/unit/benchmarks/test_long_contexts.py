"""Tests of the benchmark of long prompts, with small networks and real engines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import long_contexts
from benchmarks.held_out_code import held_out_texts
from benchmarks.rehearsal.loaded_pair import Answer, LoadedPair
from docs.figures.long_contexts import long_contexts as table
from pipelines.errors import EngineFailedError
from pipelines.executor.limits import ExecutorLimits
from tests.support.tiny_engines import DEMO_TOKENIZER, build_tiny_pair

LIMITS = ExecutorLimits(
    max_batch_size=1, max_num_tokens=64, max_seq_len=256, max_queue_size=1, num_kv_blocks=40
)
TEXTS = [np.arange(begin, begin + 200, dtype=np.int32) for begin in (5, 900)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedPair]:
    folder = tmp_path_factory.mktemp("long")
    loaded = LoadedPair(*build_tiny_pair(folder, draft="random"), folder, LIMITS, ())
    loaded.start()
    yield loaded
    loaded.stop()


def test_every_arm_answers_every_text_and_the_table_compares_them(pair: LoadedPair) -> None:
    timed = long_contexts.time_answers({"openvino": pair}, TEXTS, (40, 180), num_tokens=24)
    cells = long_contexts.cells(timed)
    assert [cell["context_len"] for cell in cells] == [40, 180]
    for cell in cells:
        arms = cell["arms"]
        assert set(arms) == {"target alone", "adaptive", "K=4", "K=8"}
        assert arms["target alone"]["ratio_to_target"]["value"] == 1
        assert all(arm["num_tokens"] == 48 for arm in arms.values())
        assert arms["target alone"]["num_rounds"] == 48
        assert arms["K=4"]["num_rounds"] + arms["K=4"]["num_accepted"] == 48
        assert all(0 < arm["ms_per_token"] < 1e3 for arm in arms.values())
    about = {
        **{"cpu": "C", "num_cores": 2, "load_average_1min": 0.5, "date": "2026-11-25T", "git_sha": "abc"},
        **{"command": "python -m x", "packages": {"openvino": "1"}, "python": "3", "recipe": "r"},
    }
    text = table({"cells": cells, "conditions": about, "max_tokens": 24, "num_texts": 2})
    assert text.count("| `openvino` |") == 2
    assert "`num_draft_tokens` 8" in text


def test_the_prompt_is_no_part_of_the_time(pair: LoadedPair) -> None:
    prompt = np.arange(1000, 1240, dtype=np.int32)
    new, known = (pair.alone(prompt, 4) for _ in range(2))
    assert new.token_ids == known.token_ids
    assert new.cpu_seconds_per_token < 5 * known.cpu_seconds_per_token


@pytest.mark.parametrize("num_draft_tokens", [4, None])
def test_an_answer_that_is_not_the_targets_is_an_error(
    pair: LoadedPair, num_draft_tokens: int | None
) -> None:
    expected = pair.alone(TEXTS[0][:40], 12)
    wrong: Answer = replace(expected, token_ids=(*expected.token_ids[:-1], expected.token_ids[-1] + 1))
    with pytest.raises(EngineFailedError, match="answered differently"):
        pair.own(TEXTS[0][:40], wrong, num_draft_tokens)


def test_texts_are_parts_of_the_held_out_code(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(DEMO_TOKENIZER.read_text(encoding="utf-8"), encoding="utf-8")
    texts = held_out_texts(tmp_path, 3, 1000)
    assert [len(text) for text in texts] == [1000] * 3
    assert len({json.dumps(text.tolist()) for text in texts}) == 3
