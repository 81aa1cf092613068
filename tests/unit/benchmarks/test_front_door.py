"""Tests of what is measured of OpenAI's API."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from benchmarks import front_door as cost
from pipelines.bench.prompt_sets import PromptSet
from pipelines.client import CompletionRequest, Generation
from pipelines.client.workers import Workers
from tests.unit.bench.answers import answer

PROMPTS = tuple(CompletionRequest(f"text {number}", seed=number) for number in range(32))


def ask(request: CompletionRequest, model: str) -> Generation:
    added_s = 0.25 if model == cost.OPENAI.model else 0.0
    return answer(ttft=1.0 + added_s, e2e=3.0 + added_s, text=request.prompt)


def test_both_ways_are_compared_and_the_cpu_time_is_that_of_the_front_door() -> None:
    workers = Workers([ask] * max(cost.CONCURRENCY))
    found = cost.measure(PromptSet("code", PROMPTS), 2, workers, count(0, 1e-3).__next__)
    assert found.ttft.added_ms.value == pytest.approx(250)
    assert found.itl.added_ms.value == pytest.approx(0)
    assert [load.num_at_once for load in found.loads] == [8, 16]
    assert [load.cpu_us_per_token for load in found.loads] == [
        pytest.approx(1e3 / (5 * 2 * num_at_once)) for num_at_once in (8, 16)
    ]
    assert found.num_different == 0
    assert "| first token | 1000.00 ms | 1250.00 ms | 250.00 (250.00 to 250.00) ms |" in cost.table(found)


def test_another_text_over_one_way_is_counted() -> None:
    def other(request: CompletionRequest, model: str) -> Generation:
        return replace(ask(request, model), text=model)

    found = cost.measure(PromptSet("code", PROMPTS), 2, Workers([other] * 16), count(0, 1e-3).__next__)
    assert found.num_different == 2 * (32 + 16 + 32)
