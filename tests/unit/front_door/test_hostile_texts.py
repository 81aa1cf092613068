"""Tests of texts of any length, of clients and servers: what reads them on an event loop is linear."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from aiohttp import ClientSession

from pipelines.client.refusals import refusal
from pipelines.errors import InvalidRequestError, from_wire
from pipelines.front_door.endpoints.completions import CompletionBody
from pipelines.front_door.errors import error_document
from pipelines.front_door.messages.answer_format import lark_of
from pipelines.front_door.requests.fields import parse_body
from pipelines.text.special_names import MARK, mark_user_names
from pipelines.triton.gateway.metrics import without
from pipelines.upstreams.answer import Answer
from pipelines.upstreams.request import ForwardedRequest
from pipelines.web_application import _HOST
from tests.attacks.pages import long_key_bodies
from tests.unit.front_door.test_answering import open_door

KB = 1 << 10


def refused(text: str) -> None:
    error_document(InvalidRequestError(text, text))


def body(content: bytes) -> None:
    with pytest.raises(InvalidRequestError) as error:
        parse_body(CompletionBody, content)
    error_document(error.value)


def stream(text: str) -> None:
    """Read a line without an end, in pieces."""
    answer = Answer(is_stream=True, clock=time.time)
    for begin in range(0, len(text), 16):
        answer.read(text[begin : begin + 16].encode())


# What reads it, and a text that would take it longest, of about so many characters.
READERS: dict[str, tuple[Callable[[Any], object], Callable[[int], Any]]] = {
    "letters before no mark": (refused, lambda size: "a" * size + "!"),
    "letters and spaces": (refused, lambda size: "a " * (size // 2)),
    "names and colons": (refused, lambda size: "a: " * (size // 3)),
    "an unknown key": (body, lambda size: long_key_bodies(size)[0]),
    "an unknown key of two kinds": (body, lambda size: long_key_bodies(size)[1]),
    "a value of another type": (body, lambda size: long_key_bodies(size)[2]),
    "an unknown key of a section": (body, lambda size: long_key_bodies(size)[3]),
    "a code without an end": (from_wire, lambda size: "draftproof/" + "a" * size),
    "many beginnings of an error": (from_wire, lambda size: "draftproof/" * (size // 11)),
    "an error with semicolons": (from_wire, lambda size: "draftproof/error: " + ";;" * (size // 2)),
    "an error with many parts": (from_wire, lambda size: "draftproof/error: " + "; " * (size // 2)),
    "a refusal with many inputs": (refusal, lambda size: "input " * (size // 6)),
    "a name of a host": (_HOST.fullmatch, lambda size: "a." * (size // 2) + "@"),
    "an address of a host": (_HOST.fullmatch, lambda size: "[" + "1:" * (size // 2)),
    "a metric without an end": (
        lambda text: without(text, {"router"}),
        lambda size: b"draftproof_a{" + b'model="' * (size // 7),
    ),
    "a pattern of slashes": (lambda text: lark_of(("regex", text)), lambda size: "\\/" * (size // 2)),
    "marks in a prompt": (lambda text: mark_user_names(text, ["<|a|>"]), lambda size: MARK * (size // 2)),
    "a line of a server": (stream, lambda size: "data: " + "a" * 8 * size),
    "a body of text": (
        lambda content: ForwardedRequest.of("/v1/completions", content, "", ""),
        lambda size: json.dumps({"prompt": "a" * size}).encode(),
    ),
}


@pytest.mark.parametrize("name", READERS)
def test_a_text_eight_times_as_long_takes_about_eight_times_as_long(name: str) -> None:
    read, text = READERS[name]

    def seconds(size: int) -> float:
        content, found = text(size), []
        for _ in range(3):
            begin_s = time.thread_time()
            read(content)
            found.append(time.thread_time() - begin_s)
        return min(found)

    assert seconds(64 * KB) < 24 * max(seconds(8 * KB), 1e-3), "quadratic time would be 64 times as long"
    read(text(1024 * KB))


@pytest.mark.parametrize("num_bytes", [40_000, 1_000_000])
async def test_other_requests_are_answered_beside_one_with_a_long_key(num_bytes: int) -> None:
    """A front door stood still for 7 s by a key of 40 KB, and for hours by one of a megabyte."""
    async with open_door() as running, ClientSession(f"http://127.0.0.1:{running.port}") as session:

        async def attack(content: bytes) -> None:
            async with session.post("/v1/completions", data=content) as reply:
                document = await reply.json()
                assert reply.status == 400 and len(json.dumps(document)) < 4 * KB

        sent = [asyncio.create_task(attack(content)) for content in long_key_bodies(num_bytes)]
        ticks_s = [time.monotonic()]
        while not all(task.done() for task in sent):
            await asyncio.sleep(0.01)
            ticks_s.append(time.monotonic())
        await asyncio.gather(*sent)
        assert max(later - earlier for earlier, later in pairwise(ticks_s)) < 2.0
