"""Tests of a fleet on real connections: who is asked, who continues, and what the client is told."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry

from pipelines.deploy.identity import ServerIdentity
from pipelines.errors import (
    DraftproofError,
    EngineFailedError,
    InvalidRequestError,
    RequestCancelledError,
    ServerBusyError,
    ServerStartError,
    ServerUnavailableError,
)
from pipelines.front_door.answering import generate_all
from pipelines.upstreams.fleet.fleet import Fleet
from pipelines.upstreams.fleet.fleet_call import FleetCall
from pipelines.upstreams.fleet.placement import placed
from pipelines.wire.chunk import Chunk
from pipelines.wire.request import CompletionRequest
from tests.unit.upstreams.fleet_world import OWN, PREFIX_TOKENS, StandInServer, answer_of, fleet_of

REQUEST = CompletionRequest(prompt_ids=(3, 5), max_tokens=20, seed=11, temperature=1.0, session_id="one")
ALONE = replace(REQUEST, session_id="")  # goes to the server with the least work
OTHER_MACHINE = replace(OWN, processor="another processor")
FAILURES = (
    EngineFailedError("a step failed"),
    ServerUnavailableError("the server is shutting down"),
    RequestCancelledError("the server stopped"),
)


async def all_of(fleet: Fleet, request: CompletionRequest = REQUEST) -> list[Chunk]:
    return [chunk async for chunk in fleet.stream(request)]


async def rest_of(answer: AsyncIterator[Chunk]) -> list[Chunk]:
    return [chunk async for chunk in answer]


def asked_in_order(fleet: Fleet, servers: list[StandInServer]) -> list[StandInServer]:
    """Return the servers in the order in which they are asked for requests of the session."""
    by_address = {server.address: server for server in servers}
    found = placed(list(fleet.servers.values()), REQUEST, PREFIX_TOKENS)
    return [by_address[server.address] for server in found]


def ids_of(chunks: list[Chunk]) -> list[int]:
    return [token_id for chunk in chunks for token_id in chunk.output_ids]


def check(chunks: list[Chunk], request: CompletionRequest = REQUEST) -> None:
    """Assert that this is the whole answer."""
    ids = answer_of(request)
    assert ids_of(chunks) == ids
    assert "".join(chunk.text for chunk in chunks) == bytes(ids).decode()
    assert chunks[-1].finish_reason == "length" and chunks[-1].sequence_length == len(ids)
    assert not any(chunk.finish_reason for chunk in chunks[:-1])


@pytest.mark.parametrize("error", FAILURES)
@pytest.mark.parametrize("after", [0, 3, 15])
async def test_another_server_continues_after_what_the_client_has(error: DraftproofError, after: int) -> None:
    servers = [StandInServer(), StandInServer()]
    async with fleet_of(servers) as fleet:
        failing, other = asked_in_order(fleet, servers)
        failing.fails, failing.fails_after = error, after
        for number in range(4):
            request = replace(REQUEST, seed=number)
            check(await all_of(fleet, request), request)
        assert len(failing.asked) == len(other.asked) == 4
        for inputs in other.asked:
            assert len(inputs.get("resume_output_ids", [])) == after
            assert inputs["input_ids"] == [3, 5] and inputs["max_tokens"] == [20]
        assert fleet.num_resumed == (4 if after else 0)


@pytest.mark.parametrize("identity", [OWN, OTHER_MACHINE])
async def test_an_answer_that_another_kind_of_machine_continued_says_so(identity: ServerIdentity) -> None:
    servers = [StandInServer(), StandInServer(identity)]
    async with fleet_of(servers) as fleet:
        failing, _ = asked_in_order(fleet, servers)
        failing.fails, failing.fails_after = EngineFailedError("gone"), 6
        chunks = await all_of(fleet)
        check(chunks)
        assert chunks[-1].continued_elsewhere == (identity is OTHER_MACHINE)
        (whole,) = await generate_all(fleet, [REQUEST])
        assert whole.continued_elsewhere == (identity is OTHER_MACHINE)


async def test_equal_machines_are_preferred_for_what_is_left() -> None:
    servers = [StandInServer(OWN if number % 2 else OTHER_MACHINE) for number in range(4)]
    async with fleet_of(servers) as fleet:
        failing, next_one, *others = asked_in_order(fleet, servers)
        assert next_one.identity == failing.identity
        failing.fails, failing.fails_after = EngineFailedError("gone"), 6
        chunks = await all_of(fleet)
        check(chunks)
        assert not chunks[-1].continued_elsewhere and not any(other.asked for other in others)


async def test_a_server_that_hangs_is_left_and_its_late_tokens_change_nothing() -> None:
    servers = [StandInServer(), StandInServer()]
    async with fleet_of(servers) as fleet:
        hanging, other = asked_in_order(fleet, servers)
        hanging.is_silent, hanging.fails_after = True, 6
        answer = fleet.stream(REQUEST)
        chunks = [await anext(answer)]
        hanging.is_ready = None
        chunks += [chunk async for chunk in answer]
        check(chunks)
        assert len(other.asked[-1]["resume_output_ids"]) == 6
        assert not fleet.servers[hanging.address].is_ready


async def test_a_silent_server_that_still_answers_is_waited_for() -> None:
    """A long prompt is no reason to compute it twice."""
    servers = [StandInServer(), StandInServer()]
    async with fleet_of(servers) as fleet:
        (server, _) = fleet.servers.values()
        asked = FleetCall(REQUEST, list(fleet.servers.values()))
        server.is_ready = True
        assert not asked.may_hedge(server.address)
        server.is_ready = False
        assert asked.may_hedge(server.address)


async def test_whole_answers_and_several_at_a_time_are_spread_and_joined() -> None:
    servers = [StandInServer(), StandInServer()]
    requests = [replace(ALONE, seed=number) for number in range(8)]
    async with fleet_of(servers) as fleet:
        for request, chunk in zip(requests, await generate_all(fleet, requests), strict=True):
            check([chunk], request)
        assert [len(server.asked) for server in servers] == [4, 4]
        assert [server.num_open for server in fleet.servers.values()] == [0, 0]


async def test_a_draining_server_gets_no_requests_and_loses_none() -> None:
    servers = [StandInServer(), StandInServer()]
    async with fleet_of(servers) as fleet:
        servers[0].is_ready = False
        servers[0].fails = ServerUnavailableError("the server is shutting down")
        for number in range(20):  # also before the fleet has noticed
            request = replace(ALONE, seed=number)
            check(await all_of(fleet, request), request)
        while fleet.servers[servers[0].address].is_ready:
            await asyncio.sleep(0.05)
        servers[0].asked.clear()
        for number in range(8):
            await all_of(fleet, replace(ALONE, seed=number))
        assert servers[0].asked == []
        servers[0].is_ready, servers[0].fails = True, None
        while not fleet.servers[servers[0].address].is_ready:
            await asyncio.sleep(0.05)
        await generate_all(fleet, [ALONE] * 4)
        assert len(servers[0].asked) == 2


async def test_a_fleet_has_no_arms() -> None:
    async with fleet_of([StandInServer()]) as fleet:
        with pytest.raises(InvalidRequestError, match="cannot choose the arm"):
            await all_of(fleet, replace(REQUEST, arm="candidate"))


async def test_a_full_queue_sends_a_request_to_each_other_server_once() -> None:
    servers = [StandInServer() for _ in range(3)]
    async with fleet_of(servers) as fleet:
        for server in servers:
            server.fails = ServerBusyError("the queue is full")
        with pytest.raises(ServerBusyError):
            await all_of(fleet)
        assert [len(server.asked) for server in servers] == [1, 1, 1]
        servers[2].fails = None
        check(await all_of(fleet))


async def test_sessions_and_shared_beginnings_keep_their_server_up_to_a_bound() -> None:
    servers = [StandInServer() for _ in range(4)]
    shared = replace(ALONE, prompt_ids=tuple(range(40)))
    async with fleet_of(servers) as fleet:
        for requests in (
            [replace(REQUEST, session_id="one", seed=number) for number in range(6)],
            [replace(shared, prompt_ids=(*shared.prompt_ids, number)) for number in range(6)],
        ):
            for request in requests:
                await all_of(fleet, request)
            assert sorted(len(server.asked) for server in servers) == [0, 0, 0, 6]
            for server in servers:
                server.asked.clear()
        for server in servers:
            server.is_silent, server.fails_after = True, 0
        waiting = [asyncio.create_task(all_of(fleet, shared)) for _ in range(16)]
        while sum(len(server.asked) for server in servers) < 16:
            await asyncio.sleep(0.01)
        assert max(len(server.asked) for server in servers) <= 5  # 1.25 times the mean
        for task in waiting:
            task.cancel()


async def test_the_metrics_say_which_servers_answer_and_what_was_continued() -> None:
    servers = [StandInServer(), StandInServer()]
    async with fleet_of(servers) as fleet:
        registry = CollectorRegistry()
        registry.register(fleet)
        failing, other = asked_in_order(fleet, servers)
        failing.fails, failing.fails_after = EngineFailedError("gone"), 6
        await all_of(fleet)

        def value(name: str, **labels: str) -> float | None:
            return registry.get_sample_value(f"draftproof_fleet_{name}", labels)

        assert value("continued_answers_total") == 1
        assert value("server_failures_total", server=failing.address) == 1
        assert value("server_failures_total", server=other.address) == 0
        for server in servers:
            assert value("server_ready", server=server.address) == 1
            assert value("server_open_answers", server=server.address) == 0


async def test_without_a_server_the_client_is_told_to_come_again() -> None:
    async with fleet_of([], absent=["127.0.0.1:9", "127.0.0.1:11"]) as fleet:
        assert not await fleet.is_ready()
        with pytest.raises(ServerUnavailableError, match="no server of the fleet answers"):
            await all_of(fleet)


@pytest.mark.parametrize("change", [{"target_digest": "1" * 64}, {"pair": "another"}])
async def test_a_server_of_another_pair_is_refused_with_the_digests(change: dict[str, str]) -> None:
    servers = [StandInServer(), StandInServer(replace(OWN, **change))]
    with pytest.raises(ServerStartError, match="serve different pairs") as refused:
        async with fleet_of(servers, absent=["127.0.0.1:9"]):
            pass
    assert next(iter(change.values())) in refused.value.message and OWN.target_digest in refused.value.message


async def test_a_server_that_comes_back_with_another_pair_gets_no_requests() -> None:
    servers = [StandInServer(), StandInServer()]
    async with fleet_of(servers) as fleet:
        servers[1].identity = replace(OWN, target_digest="1" * 64)
        while fleet.servers[servers[1].address].is_ready:
            await asyncio.sleep(0.05)
        servers[1].asked.clear()
        await generate_all(fleet, [ALONE] * 4)
        assert Counter(len(server.asked) for server in servers) == {4: 1, 0: 1}


async def test_a_server_of_unreadable_description_gets_no_requests(caplog: pytest.LogCaptureFixture) -> None:
    servers = [StandInServer(), StandInServer()]
    servers[1].identity = SimpleNamespace(extension="draftproof {}")  # type: ignore[assignment]
    async with fleet_of(servers) as fleet:
        await generate_all(fleet, [ALONE] * 4)
        assert [len(server.asked) for server in servers] == [4, 0]
        assert caplog.text.count(f"{servers[1].address} gets no requests") == 1


async def test_a_server_that_was_away_at_first_continues_what_is_left() -> None:
    servers = [StandInServer(), StandInServer()]
    async with fleet_of(servers) as fleet:
        failing, away = asked_in_order(fleet, servers)
        away.is_ready = False
        while fleet.servers[away.address].is_ready:
            await asyncio.sleep(0.05)
        failing.is_silent, failing.fails_after = True, 6
        answer = fleet.stream(REQUEST)
        chunks = [await anext(answer), await anext(answer)]
        await failing.stop()  # now nobody answers; what has begun waits
        waiting = asyncio.create_task(rest_of(answer))
        while fleet.servers[failing.address].is_ready:
            await asyncio.sleep(0.05)
        away.is_ready = True
        check([*chunks, *await waiting])
        assert len(away.asked[-1]["resume_output_ids"]) == 6
