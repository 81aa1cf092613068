"""Tests of thousands of concurrent requests: each is answered or refused as busy, and no arm is blamed."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from pipelines.client import CompletionRequest
from pipelines.client.refusals import refusal
from pipelines.deploy.server import Server
from tests.integration.conftest import grpc_client, read_gauge, wait_until
from tests.support.ready_server import ready_server

pytestmark = [pytest.mark.triton, pytest.mark.long]

NUM_REQUESTS = 5000
ENOUGH_S = 240.0  # takes some 15 s; an unanswered request would hang for ever
REQUEST = CompletionRequest("def main(", max_tokens=24, seed=1)

Ask = Callable[[], Awaitable[str]]


@pytest.fixture(scope="module")
def burst_server(render: Callable[..., Path]) -> Iterator[tuple[Server, Path]]:
    """Return a ready server of this test's own, and its run directory."""
    directory = render("tiny-burst", "router")
    with ready_server(directory) as running:
        yield running, directory


def grpc_request() -> service_pb2.ModelInferRequest:
    message = service_pb2.ModelInferRequest(model_name="router")
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    for name, datatype, contents in (("text_input", "BYTES", "bytes"), ("max_tokens", "INT32", "int")):
        tensor = message.inputs.add(name=name, datatype=datatype, shape=[1, 1])
        value = REQUEST.prompt.encode() if contents == "bytes" else REQUEST.max_tokens
        getattr(tensor.contents, f"{contents}_contents").append(value)
    return message


async def over_grpc(server: Server) -> Counter[str]:
    """Send every request as a stream of its own on one channel."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.ports.grpc}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        message = grpc_request()

        async def ask() -> str:
            is_final = False
            async for arrival in stub.ModelStreamInfer(iter((message,))):
                if arrival.error_message:
                    return type(refusal(arrival.error_message)).__name__
                is_final |= arrival.infer_response.parameters["triton_final_response"].bool_param
            return "answered" if is_final else "ended without a last response"

        return await all_of(ask)


async def over_http(server: Server) -> Counter[str]:
    """Send every request on a connection of its own."""
    body = json.dumps({"text_input": REQUEST.prompt, "max_tokens": REQUEST.max_tokens})
    sent = (
        "POST /v2/models/router/generate HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    )

    async def ask() -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.ports.http)
        writer.write(sent.encode())
        answer = await reader.read()
        writer.close()
        reply = json.loads(answer[answer.index(b"{") : answer.rindex(b"}") + 1])  # in one chunk
        return type(refusal(reply["error"])).__name__ if "error" in reply else "answered"

    return await all_of(ask)


async def all_of(ask: Ask) -> Counter[str]:
    asked = asyncio.gather(*(ask() for _ in range(NUM_REQUESTS)))
    return Counter(await asyncio.wait_for(asked, ENOUGH_S))


@pytest.mark.parametrize("send", [over_grpc, over_http])
def test_a_burst_is_answered_or_busy_and_blames_nobody(
    burst_server: tuple[Server, Path], send: Callable[[Server], Awaitable[Counter[str]]]
) -> None:
    server, directory = burst_server
    with grpc_client(server) as client:
        before = client.generate(REQUEST, "router")
        ended = asyncio.run(send(server))  # type: ignore[arg-type]
        assert set(ended) <= {"answered", "ServerBusyError"}, ended
        assert ended["answered"] >= 12 and ended["ServerBusyError"], ended
        after = client.generate(REQUEST, "router")
    assert (after.output_ids, after.arm) == (before.output_ids, "stable")
    for arm in ("stable", "control"):
        assert read_gauge(server, "draftproof_router_arm_out", arm=arm) == 0
    assert wait_until(lambda: read_gauge(server, "draftproof_router_requests_open") == 0)
    log = (directory / "server.log").read_text(encoding="utf-8")
    assert "breaker opened" not in log and "Traceback" not in log
