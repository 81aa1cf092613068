"""A front door over a router that a test scripts, and a client of Anthropic's API that joins its events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from aiohttp.test_utils import TestClient, TestServer

from pipelines.deploy.front_door import FrontDoorSettings
from pipelines.errors import DraftproofError
from pipelines.front_door.application import FrontDoor
from pipelines.front_door.served_model import ChatRenderers, ServedModel
from pipelines.text.chat_template import ChatTemplate
from pipelines.wire.chunk import Chunk
from pipelines.wire.request import CompletionRequest
from tests.support.chat_templates import ALL
from tests.unit.front_door.messages.cases import SPECIAL, TOKENIZER, WEATHER
from tests.unit.front_door.messages.test_round_trip import SPECIAL_TOKENS, TEMPLATES
from tests.unit.front_door.test_answering import unused

SIZE = 2048
USER = {"role": "user", "content": "hot?"}
TOOL = {"name": "get_weather", "input_schema": WEATHER.parameters, "cache_control": {"type": "ephemeral"}}
ASKED: dict[str, Any] = {"model": "m", "max_tokens": 100, "messages": [USER]}
USE = {"type": "tool_use", "id": "call_0001", "name": "get_weather", "input": {"city": "Bonn"}}
RESULT = {"type": "tool_result", "tool_use_id": "call_0001"}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "print"}
REDACTED = {"type": "redacted_thinking", "data": "x"}
FOUND = {"type": "tool_reference", "tool_name": "late"}
CHANGE = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "late"}}
SERVERS_USE = {"type": "server_tool_use", "id": "s", "name": "tool_search_tool_bm25", "input": {}}
SERVERS_RESULT = {
    "type": "tool_search_tool_result",
    "tool_use_id": "s",
    "content": {"type": "tool_search_tool_search_result", "tool_references": [FOUND]},
}


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def user(*content: Any) -> Any:
    return {"role": "user", "content": list(content)}


def assistant(*content: Any) -> Any:
    return {"role": "assistant", "content": list(content)}


class Router:
    """Answers each request with a text that a test sets, in pieces of three characters, or fails."""

    max_requests = 8

    def __init__(self) -> None:
        self.answer, self.stop_word, self.reason = "Yes.", "", "stop"
        self.failure: DraftproofError | None = None
        self.fails_after = 0  # pieces
        self.waits_s = 0.0
        self.asked: list[CompletionRequest] = []

    async def stream(self, request: CompletionRequest, *, streaming: bool) -> Any:
        self.asked.append(request)
        await asyncio.sleep(self.waits_s)
        starts = range(0, len(self.answer) or 1, 3)
        for number, start in enumerate(starts):
            if self.failure is not None and number == self.fails_after:
                raise self.failure
            piece, is_last = self.answer[start : start + 3], number == len(starts) - 1
            ids = tuple(TOKENIZER.encode(piece + self.stop_word * is_last, add_special_tokens=False))
            marks = (False,) * len(ids)
            yield Chunk(piece, ids, marks, self.reason if is_last else "", 0.0, 1, num_cached=7 * is_last)


class Door:
    """A front door of a stand-in router and a chat template, and a client of it."""

    def __init__(self, client: TestClient[Any, Any], router: Router) -> None:
        self.client, self.router = client, router

    async def post(self, body: Any, path: str = "/v1/messages", **headers: str) -> tuple[int, Any]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        reply = await self.client.post(path, data=json.dumps(body), headers=named)
        if reply.headers["Content-Type"].startswith("text/event-stream"):
            return reply.status, [event_of(each) for each in (await reply.text()).split("\n\n")[:-1]]
        return reply.status, await reply.json()

    async def answer(self, **changes: Any) -> Any:
        """Return an answer, which is the same when it is streamed."""
        status, whole = await self.post({**ASKED, **changes})
        assert status == 200, whole
        assert joined((await self.post({**ASKED, "stream": True, **changes}))[1]) == without_ids(whole)
        return whole


@asynccontextmanager
async def open_door(
    template: str = "hermes", *, checks_model: bool = False, **settings: Any
) -> AsyncIterator[Door]:
    source = TEMPLATES.get(template) or ALL[template]
    chat, router = ChatRenderers(ChatTemplate({"default": source}, SPECIAL_TOKENS, SPECIAL)), Router()
    model = ServedModel("m", "print", SIZE, 8, 0, TOKENIZER, CompletionRequest(), chat)
    parts: Any = (model, router, FrontDoorSettings(**settings), SimpleNamespace(answer=unused))
    application = FrontDoor(*parts, [], checks_model=checks_model).application()
    server = TestServer(application)
    await server.start_server(auto_decompress=False)  # as ``serving.listen`` does
    async with TestClient(server) as client:
        yield Door(client, router)
    chat.close()


def event_of(lines: str) -> Any:
    name, data = lines.split("\n")
    event = json.loads(data.removeprefix("data: "))
    assert name == f"event: {event['type']}"
    return event


def joined(events: list[Any]) -> Any:
    """Return the message that a client makes of events, whose order it checks."""
    start, ping, *between, delta, stop = events
    assert (ping, stop) == ({"type": "ping"}, {"type": "message_stop"})
    message, arguments, is_open = start["message"], "", False
    assert message["content"] == [] and message["usage"]["output_tokens"] == 0
    for event in between:
        kind = event["type"].removeprefix("content_block_")
        assert is_open == (kind != "start")
        is_open = kind != "stop"
        if kind == "start":
            message["content"].append(event["content_block"])
        block = message["content"][event["index"]]
        if kind == "delta":
            [(change, key)] = [(event["delta"].pop("type"), *event["delta"])]
            if change == "input_json_delta":
                arguments += event["delta"][key]
            else:
                block[key] += event["delta"][key]
        elif kind == "stop" and block["type"] == "tool_use" and arguments:
            try:
                block["input"] = json.loads(arguments)
            except ValueError:  # cut off
                block["input"] = ...
        if kind == "stop":
            arguments = ""
    message |= {**delta["delta"], "usage": delta["usage"]}
    return without_ids(message)


def without_ids(message: Any) -> Any:
    """Return a message without what is drawn for each, and without arguments that are cut off."""
    content = [{**block, "id": ""} if "id" in block else dict(block) for block in message["content"]]
    if message["stop_reason"] == "max_tokens" and content and content[-1]["type"] == "tool_use":
        content[-1]["input"] = ...
    return {**message, "id": "", "seed": 0, "content": content}
