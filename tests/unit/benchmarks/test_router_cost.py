"""Tests that the measured cost of the router is what it adds, despite drift and cold prompts."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from benchmarks.router_cost import BUSY, measure_router_cost
from benchmarks.two_ways import MAX_TOKENS
from pipelines.bench.prompt_sets import PromptSet
from pipelines.client import CompletionRequest, Generation
from pipelines.client.workers import Workers
from tests.unit.bench.answers import answer

PROMPTS = PromptSet("code", tuple(CompletionRequest(f"text {number}") for number in range(8)))


class Server:
    """A server that answers immediately and reports scripted times, on a machine that slows down.

    Args:
        added_s: The router's addition to the time to the first token.
        changes: Changes to the router's answers.
    """

    def __init__(self, added_s: float = 0.0, **changes: Any) -> None:
        self.added_s, self.changes = added_s, changes
        self.asked: list[tuple[str, str]] = []
        self._count = itertools.count()

    def ask(self, request: CompletionRequest, model: str) -> Generation:
        self.asked.append((request.prompt, model))
        is_routed = model == "router"
        cold_s = 9.0 * ((request.prompt, model) not in self.asked[:-1])
        ttft_s = 1.0 + 1e-6 * next(self._count) + cold_s + self.added_s * is_routed
        return answer(ttft=ttft_s, e2e=ttft_s + 2.0, **self.changes if is_routed else {})

    def workers(self) -> Workers:
        return Workers([self.ask] * BUSY.num_at_once)


def test_the_addition_is_found_and_nothing_is_found_where_nothing_is_added() -> None:
    cost = measure_router_cost(PROMPTS, 2, Server(added_s=0.25).workers())
    assert cost.ttft.added_ms.value == pytest.approx(250, abs=0.1)
    assert cost.ttft.added_ms.low <= cost.ttft.added_ms.value <= cost.ttft.added_ms.high < 250.1
    assert (cost.itl.direct_ms, cost.itl.routed_ms) == pytest.approx((500, 500))
    assert cost.itl.added_ms.value == pytest.approx(0)
    assert cost.ttft.num_pairs == cost.itl.num_pairs == 2 * len(PROMPTS.requests)
    assert cost.speed_ratio.low <= cost.speed_ratio.value <= cost.speed_ratio.high
    assert cost.num_different == 0


def test_each_way_is_asked_first_as_often_as_the_other() -> None:
    server = Server()
    measure_router_cost(PROMPTS, 2, server.workers())
    singles = server.asked[2 * len(PROMPTS.requests) :][: 4 * len(PROMPTS.requests)]
    first = [model for _, model in singles[::2]]
    assert first.count("router") == first.count("generate")
    assert all(
        one[0] == other[0] and one[1] != other[1]
        for one, other in zip(singles[::2], singles[1::2], strict=True)
    )


def test_another_answer_of_the_router_is_counted() -> None:
    cost = measure_router_cost(PROMPTS, 2, Server(output_ids=(5,) * 5).workers())
    assert cost.num_different == 2 * len(PROMPTS.requests) + 2 * len(PROMPTS.requests)


def test_answers_of_one_token_have_no_time_per_further_token() -> None:
    server = Server()

    def ask(request: CompletionRequest, model: str) -> Generation:
        generation = server.ask(request, model)
        return answer(1) if request.prompt == "text 0" else generation

    cost = measure_router_cost(PROMPTS, 2, Workers([ask] * BUSY.num_at_once))
    assert cost.ttft.num_pairs == 2 * len(PROMPTS.requests)
    assert cost.itl.num_pairs == cost.ttft.num_pairs - 2


def test_requests_ask_for_as_many_tokens_as_the_result_says() -> None:
    lengths = []

    def ask(request: CompletionRequest, model: str) -> Generation:
        lengths.append(request.max_tokens)
        return answer()

    measure_router_cost(PROMPTS, 2, Workers([ask] * BUSY.num_at_once))
    assert set(lengths) == {MAX_TOKENS}
