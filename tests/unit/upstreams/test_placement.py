"""Tests of placement at the size of a fleet: balance, stability, and limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from pipelines.errors import ServerBusyError
from pipelines.upstreams.fleet.placement import Placement
from pipelines.upstreams.fleet.server import FleetServer
from pipelines.wire.request import CompletionRequest

PLACEMENT = Placement(prefix_tokens=32)
NO_CALLS: Any = None


def fleet_of(count: int) -> list[FleetServer]:
    return [FleetServer(f"10.0.0.{number}:8001", NO_CALLS, is_ready=True) for number in range(count)]


def shared(number: int, last: int = 0) -> CompletionRequest:
    """Return a prompt with one of many system prompts."""
    return CompletionRequest(prompt_ids=(*[number] * 40, last))


def place(servers: Sequence[FleetServer], requests: Sequence[CompletionRequest]) -> list[str]:
    return [PLACEMENT.order(servers, request)[0].address for request in requests]


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
        PLACEMENT.order(servers, shared(number % num_prompts))[0].num_open += 1
    assert max(server.num_open for server in servers) <= 25
    assert sum(server.num_open for server in servers) == 200


def test_equal_beginnings_are_as_long_as_the_settings_say() -> None:
    servers = fleet_of(50)
    tails = [CompletionRequest(prompt_ids=(*[5] * 64, number)) for number in range(20)]
    assert len(set(place(servers, tails))) == 1
    longer = Placement(prefix_tokens=65)
    assert len({longer.order(servers, request)[0].address for request in tails}) > 1
    of_session = [
        CompletionRequest(prompt_ids=tail.prompt_ids, session_id=str(number))
        for number, tail in enumerate(tails)
    ]
    assert len(set(place(servers, of_session))) > 1, "a session says more than a beginning"


def test_a_server_gets_as_many_answers_as_the_limit_allows() -> None:
    servers, limited = fleet_of(3), Placement(prefix_tokens=32, max_open=4)
    for _ in range(12):
        limited.order(servers, shared(1))[0].num_open += 1
    assert [server.num_open for server in servers] == [4, 4, 4]
    with pytest.raises(ServerBusyError, match="servers of the fleet are full") as refused:
        limited.order(servers, shared(1))
    assert "max_requests_per_server=4" in refused.value.message
    servers[1].num_open -= 1
    order = limited.order(servers, shared(2))
    assert order[0] is servers[1] and len(order) == 3, "the others may continue its answer"
