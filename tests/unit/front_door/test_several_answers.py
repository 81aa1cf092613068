"""Tests of several answers to one request, and of calls over gRPC: none is cancelled while it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from pipelines import kserve_stream
from pipelines.errors import InvalidRequestError, ServerBusyError
from pipelines.front_door.answering import generate_all, merged
from pipelines.upstreams.fleet.server import GatewayCalls
from pipelines.wire.chunk import Chunk
from pipelines.wire.request import CompletionRequest

BUSY = ServerBusyError("the queue is full: a, b", "c").to_wire()
ENDS_AFTER_S = 0.1
_WITHIN_S = 60.0


class StandInRouter(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Answers "fail" with an error whose stream ends later, as Triton's does, and others until it is left.

    ``ended``: how each call ended: "whole", or "cancelled".
    """

    def __init__(self) -> None:
        self.arrived: asyncio.Queue[None] = asyncio.Queue()
        self.ended: asyncio.Queue[str] = asyncio.Queue()
        self.ends_after_s = ENDS_AFTER_S

    async def ModelStreamInfer(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        try:
            async for request in requests:
                self.arrived.put_nowait(None)
                raw = dict(
                    zip([each.name for each in request.inputs], request.raw_input_contents, strict=True)
                )
                if raw["text_input"][4:] == b"fail":
                    yield service_pb2.ModelStreamInferResponse(error_message=BUSY)
                    await asyncio.sleep(self.ends_after_s)
                else:
                    await asyncio.sleep(600)
            self.ended.put_nowait("whole")
        except asyncio.CancelledError:
            self.ended.put_nowait("cancelled")
            raise


@asynccontextmanager
async def routed() -> AsyncIterator[tuple[GatewayCalls, StandInRouter]]:
    server, router = grpc.aio.server(), StandInRouter()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(router, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    calls = GatewayCalls(f"127.0.0.1:{port}")
    try:
        yield calls, router
    finally:
        await calls.close()
        await server.stop(0)


async def whole(calls: GatewayCalls, prompt: str) -> list[Chunk]:
    return [chunk async for chunk in calls.stream(CompletionRequest(prompt))]


@pytest.mark.parametrize(("ends_after_s", "ended"), [(ENDS_AFTER_S, "whole"), (600, "cancelled")])
async def test_the_stream_of_a_failed_request_is_read_to_its_end_unless_it_never_ends(
    ends_after_s: float, ended: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton 2.51 may never release a call that is cancelled while it ends (its pull request 8078)."""
    if ended == "cancelled":
        monkeypatch.setattr(kserve_stream, "_ENDS_WITHIN_S", 0.05)
    async with routed() as (calls, router):
        router.ends_after_s = ends_after_s
        with pytest.raises(ServerBusyError):
            await asyncio.wait_for(whole(calls, "fail"), _WITHIN_S)
        assert await asyncio.wait_for(router.ended.get(), _WITHIN_S) == ended


async def test_a_request_that_nobody_waits_for_is_cancelled() -> None:
    async with routed() as (calls, router):
        waiting = asyncio.create_task(whole(calls, "hang"))
        await asyncio.wait_for(router.arrived.get(), _WITHIN_S)
        waiting.cancel()
        assert await asyncio.wait_for(router.ended.get(), _WITHIN_S) == "cancelled"


def chunk_of(text: str) -> Chunk:
    return Chunk(text, (1,), (False,), "", 0.0, 1, None)


async def test_answers_that_nobody_takes_are_not_collected() -> None:
    num_made = [0, 0]

    async def answer(number: int) -> AsyncIterator[Chunk]:
        while True:
            num_made[number] += 1
            yield chunk_of(str(number))
            await asyncio.sleep(0)

    chunks = merged([answer(0), answer(1)])  # type: ignore[list-item]
    await anext(chunks)
    for _ in range(1000):
        await asyncio.sleep(0)
    assert sum(num_made) <= 6
    await chunks.aclose()


def test_the_first_error_ends_all_answers() -> None:
    closed: list[int] = []

    async def answer(number: int) -> AsyncIterator[Chunk]:
        try:
            for _ in range(3):
                yield chunk_of(str(number))
                await asyncio.sleep(0)
            if number == 1:
                raise InvalidRequestError("no")
            await asyncio.sleep(600)
        finally:
            closed.append(number)

    async def run() -> int:
        num_seen = 0
        with pytest.raises(InvalidRequestError):
            async for _ in merged([answer(0), answer(1), answer(2)]):  # type: ignore[list-item]
                num_seen += 1
        return num_seen

    assert asyncio.run(asyncio.wait_for(run(), _WITHIN_S)) == 9
    assert sorted(closed) == [0, 1, 2]


def test_answers_that_nobody_needs_have_ended_when_the_error_arrives() -> None:
    """Otherwise engines go on with them, and they outlive the request."""
    ended: list[str] = []

    class Router:
        async def stream(self, request: CompletionRequest, *, streaming: bool) -> AsyncIterator[Chunk]:
            if request.prompt == "fail":
                raise InvalidRequestError("no")
            try:
                await asyncio.sleep(600)
            finally:
                await asyncio.sleep(0.01)  # the connection is closed
                ended.append(request.prompt)
            yield chunk_of("")

    async def run() -> None:
        with pytest.raises(InvalidRequestError):
            await generate_all(Router(), [CompletionRequest(prompt) for prompt in ("a", "fail", "b")])  # type: ignore[arg-type]
        assert sorted(ended) == ["a", "b"]

    asyncio.run(asyncio.wait_for(run(), _WITHIN_S))
