"""Tests of placement at the size of a fleet: balance and stability."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from pipelines.upstreams.fleet.placement import placed
from pipelines.upstreams.fleet.server import FleetServer
from pipelines.wire.request import CompletionRequest

PREFIX_TOKENS = 32
NO_CALLS: Any = None


def fleet_of(count: int) -> list[FleetServer]:
    return [FleetServer(f"10.0.0.{number}:8001", NO_CALLS, is_ready=True) for number in range(count)]


def shared(number: int, last: int = 0) -> CompletionRequest:
    """Return a prompt with one of many system prompts."""
    return CompletionRequest(prompt_ids=(*[number] * 40, last))


def place(servers: Sequence[FleetServer], requests: Sequence[CompletionRequest]) -> list[str]:
    return [placed(servers, request, PREFIX_TOKENS)[0].address for request in requests]


@pytest.mark.parametrize("count", [3, 10])
def test_many_prompts_are_spread_and_each_keeps_its_server(count: int) -> None:
    servers, requests = fleet_of(count), [shared(number) for number in range(100 * count)]
    chosen = place(servers, requests)
    assert chosen == place(servers[::-1], requests), "another front door knows them in another order"
    spread = Counter(chosen)
    assert len(spread) == count and max(spread.values()) < 160 and min(spread.values()) > 50
    assert place(servers, [shared(number, 9) for number in range(100 * count)]) == chosen


@pytest.mark.parametrize("count", [3, 40])
def test_a_server_that_leaves_moves_only_its_own_prompts(count: int) -> None:
    servers, requests = fleet_of(count), [shared(number) for number in range(10 * count)]
    before, after = place(servers, requests), place(servers[1:], requests)
    gone = servers[0].address
    assert [now for was, now in zip(before, after, strict=True) if was != gone] == [
        was for was in before if was != gone
    ]
    assert len({now for was, now in zip(before, after, strict=True) if was == gone}) > 1


@pytest.mark.parametrize("num_prompts", [1, 2, 50])
def test_no_server_gets_more_than_a_quarter_above_the_mean(num_prompts: int) -> None:
    servers = fleet_of(10)
    for number in range(200):
        placed(servers, shared(number % num_prompts), PREFIX_TOKENS)[0].num_open += 1
    assert max(server.num_open for server in servers) <= 25
    assert sum(server.num_open for server in servers) == 200


def test_equal_beginnings_are_as_long_as_the_settings_say() -> None:
    servers = fleet_of(50)
    tails = [CompletionRequest(prompt_ids=(*[5] * 64, number)) for number in range(20)]
    assert len(set(place(servers, tails))) == 1
    assert len({placed(servers, request, 65)[0].address for request in tails}) > 1
    of_session = [
        CompletionRequest(prompt_ids=tail.prompt_ids, session_id=str(number))
        for number, tail in enumerate(tails)
    ]
    assert len(set(place(servers, of_session))) > 1, "a session says more than a beginning"
