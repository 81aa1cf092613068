"""Tests of the gateway over HTTP: bodies and events, and what nobody or only operators may do."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Awaitable
from types import SimpleNamespace
from typing import Any

import pytest

from pipelines.errors import DraftproofError, ForbiddenError, InternalError, InvalidRequestError, from_wire
from pipelines.triton.gateway.http_server import HttpServer
from pipelines.triton.gateway.request_checks import MAX_BODY_BYTES
from pipelines.triton.gateway.triton import KEY_HEADER
from tests.support.lost_cancellations import turns_that_lose_a_cancellation
from tests.unit.gateway.running_gateway import Gateway

GENERATE = "/v2/models/generate/generate"
INFER = "/v2/models/generate/infer"
HELLO = {"text_input": "hello", "max_tokens": 1}
LENGTH = "Inference-Header-Content-Length"


async def refusal(gateway: Gateway, method: str, path: str, **options: Any) -> tuple[int, DraftproofError]:
    """Return the status of a refused request, and our error."""
    async with gateway.session.request(method, path, **options) as reply:
        document = json.loads(await reply.text())
        error = from_wire(document["error"])
        assert set(document) == {"error"} and error is not None
        assert gateway.key not in str(error) and "Traceback" not in str(error)
        return reply.status, error


async def post(gateway: Gateway, path: str, body: Any) -> Any:
    async with gateway.session.post(path, json=body) as reply:
        assert reply.status == 200, await reply.text()
        return await reply.json()


async def test_a_version_an_id_and_parameters_may_be_given(gateway: Gateway) -> None:
    path = "/v2/models/generate/versions/1/generate"
    document = await post(gateway, path, {**HELLO, "id": "mine", "timeout": 7})
    assert (document["text_output"], document["output_ids"]) == ("hello 0", [1, 2])
    [asked] = gateway.triton.requests
    assert (asked.parameters["timeout"].int64_param, asked.id, document["id"]) == (7, "mine", "mine")


async def test_generate_gives_one_response_and_generate_stream_any_number(gateway: Gateway) -> None:
    status, error = await refusal(gateway, "POST", GENERATE, json={**HELLO, "max_tokens": 3})
    assert status == 400 and "needs exactly one response" in str(error)
    for tokens, texts in ((3, ["hello 0", "hello 1", "hello 2"]), (0, [])):
        async with gateway.session.post(f"{GENERATE}_stream", json={**HELLO, "max_tokens": tokens}) as reply:
            assert (reply.status, reply.content_type) == (200, "text/event-stream")
            events = [json.loads(line[6:]) for line in (await reply.text()).split("\n\n") if line]
        assert [event["text_output"] for event in events] == texts


async def test_a_defect_shows_nothing_of_the_inside(gateway: Gateway) -> None:
    gateway.health.refusal = ValueError("of ours")
    status, error = await refusal(gateway, "POST", GENERATE, json=HELLO)
    assert status == 500 and type(error) is InternalError and "of ours" not in str(error)


async def test_infer_carries_binary_data_both_ways(gateway: Gateway) -> None:
    described = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1]}
    document = {
        "inputs": [{**described, "parameters": {"binary_data_size": 9}}],
        "outputs": [{"name": "output_ids", "parameters": {"binary_data": True}}],
    }
    written = json.dumps(document).encode()
    headers = {LENGTH: str(len(written))}
    async with gateway.session.post(INFER, data=written + b"\5\0\0\0hello", headers=headers) as reply:
        length, body = int(reply.headers[LENGTH]), await reply.read()
    assert json.loads(body[:length])["outputs"][0]["data"] == ["hello 0"]
    assert body[length:] == b"\1\0\0\0\2\0\0\0"
    for odd in ("-1", "x", "1e3", "9" * 30, "٣", ""):
        assert (await refusal(gateway, "POST", INFER, data=b"{}", headers={LENGTH: odd}))[0] == 400, odd


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://elsewhere.example", "Content-Type": "text/plain"},
        {"Origin": "null"},
        {"Origin": "HOST"},  # also of a site whose name leads to this address
        *({"Sec-Fetch-Site": site} for site in ("cross-site", "same-site", "same-origin")),
    ],
)
async def test_pages_in_browsers_are_refused(gateway: Gateway, headers: dict[str, str]) -> None:
    own = f"http://127.0.0.1:{gateway.port}"
    sent = {name: value.replace("HOST", own) for name, value in headers.items()}
    for key in ({}, {KEY_HEADER: gateway.key}):
        for path in (GENERATE, "/v2/repository/index"):
            status, error = await refusal(
                gateway, "POST", path, data=json.dumps(HELLO), headers={**sent, **key}
            )
            assert status == 403 and isinstance(error, ForbiddenError)
    assert (await refusal(gateway, "GET", "/v2/health/ready", headers=sent))[0] == 403
    typed = {"Sec-Fetch-Site": "none"}  # the address was typed into the browser
    async with gateway.session.get("/v2/health/ready", headers=typed) as reply:
        assert reply.status == 200
    assert gateway.triton.requests == []


async def test_bodies_are_plain_and_not_too_large(gateway: Gateway) -> None:
    for encoding in ("gzip", "identity", "deflate, gzip", "x"):
        status, _ = await refusal(
            gateway, "POST", GENERATE, data=b"{}", headers={"Content-Encoding": encoding}
        )
        assert status == 400, encoding
    too_large = bytes(MAX_BODY_BYTES + 1)

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(too_large), 65536):
            yield too_large[start : start + 65536]

    for path in (GENERATE, f"{GENERATE}_stream", INFER):
        for data in (io.BytesIO(too_large), chunks()):
            status, error = await refusal(gateway, "POST", path, data=data)
            assert status == 413 and "too large" in str(error)
    long = json.dumps({**HELLO, "text_input": "x" * (MAX_BODY_BYTES - 100)}).encode()
    async with gateway.session.post(GENERATE, data=io.BytesIO(long)) as reply:
        assert reply.status == 200
    assert len(gateway.triton.requests) == 1


CLOSED = [
    *(("GET", path) for path in ("/", "/metrics", "/v2/logging", "/v2/trace/setting")),
    *(("GET", f"/v2/{kind}sharedmemory/status") for kind in ("system", "cuda")),
    *(("POST", f"/v2/{kind}sharedmemory/region/r/register") for kind in ("system", "cuda")),
    *(("POST", path) for path in ("/v2/logging", "/v2/trace/setting", "/v2/models/generate/trace/setting")),
    *(("GET", f"/v2/models/generate/{name}") for name in ("stats", "versions/1/stats", "trace/setting")),
    *(("POST", path) for path in ("/v2/models/generate/versions/2/generate", "/v2/models//generate")),
    *(("POST", f"/v2/repository/models/generate/{name}") for name in ("index", "load", "unload")),
    *(("GET", "/v2/repository/index"), ("DELETE", "/v2/models/generate"), ("PUT", GENERATE)),
    *(("TRACE", "/v2"), ("OPTIONS", GENERATE), ("POST", "/v2/models/generate/ready")),
]


async def test_all_other_paths_are_closed_to_operators_too(gateway: Gateway) -> None:
    for method, path in CLOSED:
        status, error = await refusal(gateway, method, path, headers={KEY_HEADER: gateway.key})
        assert status in (404, 405) and isinstance(error, InvalidRequestError), (method, path)
    assert gateway.triton.requests == []


async def test_the_list_of_models_is_open_to_operators_alone(gateway: Gateway) -> None:
    for key in ({}, {KEY_HEADER: ""}, {KEY_HEADER: "guess"}, {KEY_HEADER: gateway.key[:-1]}):
        assert (await refusal(gateway, "POST", "/v2/repository/index", headers=key))[0] == 403
    gateway.session.headers[KEY_HEADER] = gateway.key
    index = await post(gateway, "/v2/repository/index", {})
    assert index[1] == {"name": "speculative", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"}


async def test_a_key_that_is_no_text_is_a_wrong_key(gateway: Gateway) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(b"POST /v2/repository/index HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n")
    writer.write(KEY_HEADER.encode() + b": \xff\xfe\r\n\r\n")
    assert (await reader.readline()).split()[1] == b"403"
    writer.close()


async def test_the_server_describes_itself_briefly(gateway: Gateway) -> None:
    async with gateway.session.get("/v2") as reply:
        assert await reply.json() == {"name": "triton", "version": "2.51.0", "extensions": []}


async def _opened(asked: str, *, is_operator: bool) -> None:
    pass


def test_a_client_that_leaves_with_the_end_of_its_body_is_not_answered() -> None:
    triton: Any = SimpleNamespace(is_server_key=lambda key: False)
    relay: Any = SimpleNamespace(opened=_opened, triton=triton)
    server = HttpServer(relay)

    def begin(body: asyncio.Future[bytes]) -> Awaitable[Any]:
        request: Any = SimpleNamespace(match_info={"model": "generate"}, headers={}, read=lambda: body)
        return server._begin(request)

    assert turns_that_lose_a_cancellation(begin, b"{}") == []
