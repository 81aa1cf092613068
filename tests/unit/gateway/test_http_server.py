"""Tests of the gateway over HTTP: what clients and operators may do, and what nobody may."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import ClientResponse, ClientSession, TraceConfig

from pipelines.errors import (
    DraftproofError,
    EngineFailedError,
    InternalError,
    InvalidRequestError,
    ProcessEndedError,
    RepositoryError,
    RequestTimeoutError,
    ServerBusyError,
    ServerUnavailableError,
    from_wire,
)
from pipelines.triton.gateway.http_server import HttpServer
from pipelines.triton.gateway.open_calls import OpenCalls
from pipelines.triton.gateway.request_checks import MAX_BODY_BYTES
from pipelines.triton.gateway.serving import listen
from pipelines.triton.gateway.triton import KEY_HEADER
from tests.support.lost_cancellations import turns_that_lose_a_cancellation
from tests.unit.gateway.stand_in_triton import SECRET_PATH, Behind, behind_the_gateway

GENERATE = "/v2/models/generate/generate"
HELLO = {"text_input": "hello", "max_tokens": 1}


@asynccontextmanager
async def served(directory: Path) -> AsyncIterator[tuple[Behind, Any]]:
    async with behind_the_gateway(directory) as behind:
        application = HttpServer(behind.triton, behind.health, behind.relay).application()
        replies: list[ClientResponse] = []

        async def keep(session: Any, context: Any, parameters: Any) -> None:
            replies.append(parameters.response)

        trace = TraceConfig()
        trace.on_request_end.append(keep)
        url = f"http://127.0.0.1:{behind.port}"
        async with AsyncExitStack() as fronts, ClientSession(url, trace_configs=[trace]) as client:
            await listen(fronts, application, "127.0.0.1", behind.port)
            yield behind, client
            for reply in replies:  # an unread exception would warn at some later time
                reply.close()


def run(directory: Path, scenario: Callable[[Behind, Any], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        async with served(directory) as (behind, client):
            await asyncio.wait_for(scenario(behind, client), 60)

    asyncio.run(all_of_it())


async def error_of(reply: ClientResponse) -> DraftproofError:
    """Return our error in an answer."""
    document = json.loads(await reply.text())
    assert set(document) == {"error"}
    error = from_wire(document["error"])
    assert error is not None, document
    assert "Traceback" not in str(error)
    return error


def test_a_version_an_id_and_parameters_may_be_given(tmp_path: Path) -> None:
    async def scenario(behind: Behind, client: Any) -> None:
        path = "/v2/models/generate/versions/1/generate"
        document = await (await client.post(path, json={**HELLO, "id": "mine", "timeout": 7})).json()
        assert (document["text_output"], document["output_ids"]) == ("hello 0", [1, 2])
        [asked] = behind.stand_in.requests
        assert (asked.parameters["timeout"].int64_param, asked.id, document["id"]) == (7, "mine", "mine")

    run(tmp_path, scenario)


def test_generate_gives_one_response_and_generate_stream_any_number(tmp_path: Path) -> None:
    async def scenario(behind: Behind, client: Any) -> None:
        three = {**HELLO, "max_tokens": 3}
        reply = await client.post(GENERATE, json=three)
        assert reply.status == 400 and "needs exactly one response" in str(await error_of(reply))
        for tokens, texts in ((3, ["hello 0", "hello 1", "hello 2"]), (0, [])):
            reply = await client.post(f"{GENERATE}_stream", json={**HELLO, "max_tokens": tokens})
            assert (reply.status, reply.content_type) == (200, "text/event-stream")
            events = [json.loads(line[6:]) for line in (await reply.text()).split("\n\n") if line]
            assert [event["text_output"] for event in events] == texts
        await behind.all_ended()

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        *((InvalidRequestError("a", values="b"), 400), (ServerBusyError("a"), 503)),
        *((ServerUnavailableError("a"), 503), (RequestTimeoutError("a"), 504), (EngineFailedError("a"), 500)),
        (ProcessEndedError("a"), 503),
        (ValueError("of ours"), 500),
    ],
)
def test_every_error_is_one_of_ours_with_its_status(tmp_path: Path, error: Exception, status: int) -> None:
    async def scenario(behind: Behind, client: Any) -> None:
        behind.health.refusal = error
        for path in (GENERATE, f"{GENERATE}_stream", "/v2/models/generate/infer"):
            reply = await client.post(path, json=HELLO)
            assert reply.status == status
            assert ("Retry-After" in reply.headers) == (status == 503)
            told = await error_of(reply)
            assert type(told) is (type(error) if isinstance(error, DraftproofError) else InternalError)
            assert "of ours" not in str(told)

    run(tmp_path, scenario)


def test_infer_carries_binary_data_both_ways(tmp_path: Path) -> None:
    async def scenario(behind: Behind, client: Any) -> None:
        described = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1]}
        inputs = [{**described, "parameters": {"binary_data_size": 9}}]
        document = {
            "inputs": inputs,
            "outputs": [{"name": "output_ids", "parameters": {"binary_data": True}}],
        }
        written = json.dumps(document).encode()
        reply = await client.post(
            "/v2/models/generate/infer",
            data=written + b"\5\0\0\0hello",
            headers={"Inference-Header-Content-Length": str(len(written))},
        )
        assert reply.status == 200, await reply.text()
        length = int(reply.headers["Inference-Header-Content-Length"])
        body = await reply.read()
        assert json.loads(body[:length])["outputs"][0]["data"] == ["hello 0"]
        assert body[length:] == b"\1\0\0\0\2\0\0\0"
        for odd in ("-1", "x", "1e3", "9" * 30, "٣", ""):
            headers = {"Inference-Header-Content-Length": odd}
            reply = await client.post("/v2/models/generate/infer", data=b"{}", headers=headers)
            assert reply.status == 400, odd

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://elsewhere.example", "Content-Type": "text/plain"},
        {"Origin": "null"},
        {"Origin": "HOST"},  # also of a site whose name leads to this address
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "same-origin"},
    ],
)
def test_pages_in_browsers_are_refused(tmp_path: Path, headers: dict[str, str]) -> None:
    async def scenario(behind: Behind, client: Any) -> None:
        sent = {
            name: value.replace("HOST", f"http://127.0.0.1:{behind.port}") for name, value in headers.items()
        }
        for key in ({}, {KEY_HEADER: behind.key}):
            for path in (GENERATE, "/v2/repository/models/generate/unload"):
                reply = await client.post(path, data=json.dumps(HELLO), headers={**sent, **key})
                assert reply.status == 403
                assert isinstance(await error_of(reply), InvalidRequestError)
        assert (await client.get("/v2/health/ready", headers=sent)).status == 403
        typed = {"Sec-Fetch-Site": "none"}  # the address was typed into the browser
        assert (await client.get("/v2/health/ready", headers=typed)).status == 200
        assert (behind.stand_in.requests, behind.health.controlled) == ([], [])

    run(tmp_path, scenario)


def test_bodies_are_plain_and_not_too_large(tmp_path: Path) -> None:
    async def scenario(behind: Behind, client: Any) -> None:
        for encoding in ("gzip", "identity", "deflate, gzip", "x"):
            reply = await client.post(GENERATE, data=b"{}", headers={"Content-Encoding": encoding})
            assert reply.status == 400, encoding
        too_large = bytes(MAX_BODY_BYTES + 1)

        async def chunks() -> AsyncIterator[bytes]:
            for start in range(0, len(too_large), 65536):
                yield too_large[start : start + 65536]

        for path in (GENERATE, f"{GENERATE}_stream", "/v2/models/generate/infer"):
            for data in (io.BytesIO(too_large), chunks()):
                reply = await client.post(path, data=data)
                assert reply.status == 413
                assert "too large" in str(await error_of(reply))
        long = json.dumps({**HELLO, "text_input": "x" * (MAX_BODY_BYTES - 100)}).encode()
        assert (await client.post(GENERATE, data=io.BytesIO(long))).status == 200
        assert len(behind.stand_in.requests) == 1

    run(tmp_path, scenario)


CLOSED = [
    *(("GET", path) for path in ("/", "/metrics", "/v2/logging", "/v2/trace/setting")),
    *(("GET", f"/v2/{kind}sharedmemory/status") for kind in ("system", "cuda")),
    *(("POST", f"/v2/{kind}sharedmemory/region/r/register") for kind in ("system", "cuda")),
    *(("POST", path) for path in ("/v2/logging", "/v2/trace/setting", "/v2/models/generate/trace/setting")),
    *(("GET", f"/v2/models/generate/{name}") for name in ("stats", "versions/1/stats", "trace/setting")),
    *(("POST", path) for path in ("/v2/models/generate/versions/2/generate", "/v2/models//generate")),
    *(("POST", f"/v2/repository/models/generate/{name}") for name in ("index", "reload", "load/x")),
    *(("GET", "/v2/repository/index"), ("DELETE", "/v2/models/generate"), ("PUT", GENERATE)),
    *(("TRACE", "/v2"), ("OPTIONS", GENERATE), ("POST", "/v2/models/generate/ready")),
]


@pytest.mark.parametrize("is_operator", [False, True])
def test_all_other_paths_are_closed(tmp_path: Path, is_operator: bool) -> None:
    async def scenario(behind: Behind, client: Any) -> None:
        headers = {KEY_HEADER: behind.key} if is_operator else {}
        for method, path in CLOSED:
            reply = await client.request(method, path, headers=headers)
            assert reply.status in (404, 405), (method, path)
            assert isinstance(await error_of(reply), InvalidRequestError)
        assert (behind.stand_in.requests, behind.health.controlled) == ([], [])

    run(tmp_path, scenario)


CONTROL = ("repository/index", "repository/models/generate/load", "repository/models/generate/unload")


def test_the_repository_is_open_to_operators_alone(tmp_path: Path) -> None:
    async def scenario(behind: Behind, client: Any) -> None:
        for path in CONTROL:
            for key in ({}, {KEY_HEADER: ""}, {KEY_HEADER: "guess"}, {KEY_HEADER: behind.key[:-1]}):
                reply = await client.post(f"/v2/{path}", headers=key)
                assert reply.status == 403
                assert behind.key not in str(await error_of(reply))
        assert behind.health.controlled == []
        headers = {KEY_HEADER: behind.key}
        for path in CONTROL[1:]:  # files and a configuration in the body would be the sender's code
            body = {"parameters": {"config": '{"backend": "python"}', "file:1/model.py": "cHJpbnQoKQ=="}}
            assert (await client.post(f"/v2/{path}", headers=headers, json=body)).status == 200
        assert behind.health.controlled == [("load", "generate"), ("unload", "generate")]
        index = await (await client.post("/v2/repository/index", headers=headers)).json()
        assert index[1] == {
            "name": "speculative",
            "version": "1",
            "state": "UNAVAILABLE",
            "reason": "unloaded",
        }
        behind.health.refusal = RepositoryError("a model could not be loaded")
        assert (await client.post(f"/v2/{CONTROL[1]}", headers=headers)).status == 500

    run(tmp_path, scenario)


def test_a_key_that_is_no_text_is_a_wrong_key(tmp_path: Path) -> None:
    async def scenario(behind: Behind, client: Any) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", behind.port)
        writer.write(b"POST /v2/repository/index HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n")
        writer.write(KEY_HEADER.encode() + b": \xff\xfe\r\n\r\n")
        assert (await reader.readline()).split()[1] == b"403"
        writer.close()

    run(tmp_path, scenario)


def test_clients_do_not_see_the_paths_of_the_machine(tmp_path: Path) -> None:
    async def scenario(behind: Behind, client: Any) -> None:
        path = "/v2/models/generate/config"
        for hidden in ("speculative", "speculative/config"):
            assert (await client.get(f"/v2/models/{hidden}")).status == 400
        document = await (await client.get(path)).json()
        assert document["parameters"] == {} and document["input"][0]["name"] == "text_input"
        assert SECRET_PATH in await (await client.get(path, headers={KEY_HEADER: behind.key})).text()
        described = await (await client.get("/v2/models/generate")).json()
        assert described["inputs"][0] == {"name": "text_input", "datatype": "BYTES", "shape": [-1, 1]}
        assert described["name"] == document["name"] == "generate"
        server = await (await client.get("/v2")).json()
        assert server == {"name": "triton", "version": "2.51.0", "extensions": []}

    run(tmp_path, scenario)


def test_readiness_is_what_the_supervisor_says(tmp_path: Path) -> None:
    async def scenario(behind: Behind, client: Any) -> None:
        async def status(path: str) -> int:
            return int((await client.get(path)).status)

        assert await status("/v2/health/ready") == await status("/v2/models/generate/ready") == 200
        assert await status("/v2/models/ensemble/ready") == await status("/v2/models/%FF%00/ready") == 503
        behind.health.ready = set()
        assert await status("/v2/health/ready") == await status("/v2/models/generate/ready") == 503
        assert await status("/v2/health/live") == 200

    run(tmp_path, scenario)


def test_a_client_that_leaves_with_the_end_of_its_body_is_not_answered() -> None:
    triton: Any = SimpleNamespace(server_key="key")
    health: Any = SimpleNamespace(check_open=lambda model: None)
    server = HttpServer(triton, health, OpenCalls())

    def begin(body: asyncio.Future[bytes]) -> Awaitable[Any]:
        request: Any = SimpleNamespace(match_info={"model": "generate"}, headers={}, read=lambda: body)
        return server._begin(request)

    assert turns_that_lose_a_cancellation(begin, b"{}") == []
