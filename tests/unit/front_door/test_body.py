"""Tests of reading bodies: large ones beside the event loop, and hostile ones not at all."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web
from backports import zstd

from pipelines.errors import InvalidRequestError
from pipelines.front_door.endpoints.chat import ChatBody
from pipelines.front_door.endpoints.completions import CompletionBody
from pipelines.front_door.endpoints.tokens import TokenizeBody, tokenize
from pipelines.front_door.messages.call_styles.tagged_calls import QWEN_XML
from pipelines.front_door.requests.body import ENCODINGS, decompressed
from pipelines.front_door.requests.fields import parse_body, read_body
from pipelines.front_door.requests.sampling import sampling_request
from pipelines.wire.request import CompletionRequest
from tests.attacks.guides import chain_of_references, slow_to_read_function, with_schema, with_tools
from tests.unit.front_door.scripted_door import ASKED, open_door


def ticks_beside(work: Callable[[], Any]) -> int:
    """Return how often the event loop turned while a coroutine ran, after its first step."""

    async def run() -> int:
        num_ticks = 0

        async def tick() -> None:
            nonlocal num_ticks
            while True:
                num_ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        await work()
        ticking.cancel()
        return num_ticks

    return asyncio.run(run())


def test_a_large_body_is_read_beside_the_event_loop() -> None:
    large = json.dumps({"prompt": list(range(200_000))}).encode()
    small = b'{"prompt": "a"}'
    assert ticks_beside(lambda: read_body(CompletionBody, large)) > 1
    assert ticks_beside(lambda: read_body(CompletionBody, small)) == 0


@pytest.mark.parametrize(("given", "reason"), [({"prompt": "a", "messages": ()}, "both"), ({}, "neither")])
def test_tokens_are_asked_of_one_prompt(given: dict[str, Any], reason: str) -> None:
    nothing: Any = None  # is needed before the refusal
    with pytest.raises(InvalidRequestError, match=reason):
        asyncio.run(tokenize(nothing, TokenizeBody(**given), nothing, nothing))


def test_null_counts_as_absent() -> None:
    assert parse_body(CompletionBody, b'{"prompt": "a", "n": null, "user": null}').n == 1


def test_a_prediction_is_a_text_or_parts_of_one() -> None:
    def read(**prediction: Any) -> str:
        body = parse_body(ChatBody, json.dumps({"messages": [], "prediction": prediction}).encode())
        return sampling_request(body, CompletionRequest(), 4).prediction

    assert read(type="content", content="def f():\n") == "def f():\n"
    parts = [{"type": "text", "text": text} for text in ("def ", "g")]
    assert read(type="content", content=parts) == "def g"
    for wrong in ({"content": "x"}, {"type": "content", "content": [{"type": "image"}]}, {"type": "file"}):
        with pytest.raises(InvalidRequestError, match="prediction"):
            read(**wrong)


@pytest.mark.parametrize(
    ("fields", "variables"),
    [
        ({"reasoning_effort": "none"}, {"enable_thinking": False}),
        ({"reasoning_effort": "high", "verbosity": "low"}, {}),
        (
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
            {"enable_thinking": True},
        ),
    ],
)
def test_the_effort_of_reasoning_turns_thoughts_off(fields: Any, variables: Any) -> None:
    body = parse_body(ChatBody, json.dumps({"messages": [], **fields}).encode())
    assert body.variables(body.reasoning_effort) == variables


@pytest.mark.parametrize(
    "content",
    [
        b'{"prompt": [' + b"[]," * 200_000 + b"1]}",
        b'{"prompt": [' + b"{}," * 200_000 + b"1]}",
        b'{"prompt": "a", "logit_bias": {' + b'"1":1,' * 200_000 + b'"2":1}}',
        b"[" * 500_000,
    ],
)
def test_a_body_of_very_many_values_is_refused_before_it_is_read(content: bytes) -> None:
    with pytest.raises(InvalidRequestError, match="too many values"):
        parse_body(CompletionBody, content)


COMPRESSED = [("gzip", gzip.compress), ("zstd", zstd.compress)]


@pytest.mark.parametrize(("encoding", "compress"), COMPRESSED)
def test_a_body_is_decompressed_whole_up_to_the_limit(encoding: str, compress: Any) -> None:
    content = json.dumps(list(range(2000))).encode()
    body, limit = compress(content), len(content)
    assert decompressed(body, encoding, limit) == content
    with pytest.raises(web.HTTPRequestEntityTooLarge):
        decompressed(body, encoding, limit - 1)
    for damaged in (body[:-1], body + body, body[:9], b"", b"\xff" + body):
        with pytest.raises(InvalidRequestError, match=f"stream of {encoding}"):
            decompressed(damaged, encoding, limit)


@pytest.mark.parametrize(("encoding", "compress"), COMPRESSED)
def test_a_bomb_is_not_expanded_beyond_the_limit(encoding: str, compress: Any) -> None:
    bomb, limit = compress(bytes(1 << 26)), 1 << 20
    tracemalloc.start()
    with pytest.raises(web.HTTPRequestEntityTooLarge):
        decompressed(bomb, encoding, limit)
    assert tracemalloc.get_traced_memory()[1] < 4 * limit
    tracemalloc.stop()


def test_a_window_that_would_take_much_memory_is_refused() -> None:
    stream = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 27})
    with pytest.raises(InvalidRequestError, match="too much memory"):
        decompressed(stream.compress(b"{}") + stream.flush(), "zstd", 100)


async def test_compressed_requests_are_answered_and_others_told_what_is_taken() -> None:
    path, content = "/v1/messages", json.dumps(ASKED).encode()
    async with open_door(max_body_bytes=4000) as door:

        async def send(body: bytes, *encodings: str) -> tuple[int, str]:
            headers = [("Content-Encoding", encoding) for encoding in encodings]
            reply = await door.client.post(path, data=body, headers=headers)
            return reply.status, await reply.text()

        for encoding, compress in COMPRESSED:
            assert (await send(compress(content), encoding))[0] == 200
            large = json.dumps({**ASKED, "system": "a" * 4000}).encode()
            assert (await send(compress(large), encoding.upper()))[0] == 413
            assert (await send(content, encoding))[0] == 400
        assert (await send(content, "identity"))[0] == 200
        for encodings in (["br"], ["gzip, gzip"], ["gzip", "zstd"]):
            status, text = await send(gzip.compress(content), *encodings)
            assert status == 415 and ", ".join(ENCODINGS) in text


@pytest.mark.parametrize("body", [with_schema(chain_of_references()), with_tools({}, chain_of_references())])
async def test_a_schema_that_would_end_the_process_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="too deeply"):
        await read_body(ChatBody, json.dumps(body).encode())


async def test_functions_that_are_slow_to_read_are_read_for_a_limited_time() -> None:
    content = json.dumps(with_tools(*[slow_to_read_function(1000)] * 14)).encode()
    began_s = time.process_time()
    warnings = (await read_body(ChatBody, content, QWEN_XML)).warnings
    assert any("took too long" in each for each in warnings) and len(warnings) <= 100
    assert time.process_time() - began_s < 5
