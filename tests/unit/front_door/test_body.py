"""Tests of reading bodies: large ones beside the event loop, and hostile ones not at all."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from pipelines.errors import InvalidRequestError
from pipelines.front_door.endpoints.chat import ChatBody
from pipelines.front_door.endpoints.completions import CompletionBody
from pipelines.front_door.messages.style import QWEN_XML
from pipelines.front_door.requests.body import parse_body, read_body
from pipelines.front_door.requests.sampling import sampling_request
from pipelines.wire.request import CompletionRequest
from tests.attacks.guides import chain_of_references, slow_to_read_function, with_schema, with_tools


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
    assert body.to_conversation().variables == variables


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
