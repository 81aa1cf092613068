"""Tests of Anthropic's API: blocks become messages, answers become blocks, and these can be sent back."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from pipelines.deploy.front_door import FrontDoorSettings
from pipelines.errors import DraftproofError, ServerBusyError
from pipelines.front_door import delivery
from pipelines.front_door.access.key_file import add_key
from pipelines.front_door.application import FrontDoor
from pipelines.front_door.endpoints.anthropic import first_word
from pipelines.front_door.messages.call_styles.json_calls import HERMES
from pipelines.front_door.messages.style import CALL_STYLES
from pipelines.front_door.requests.message_blocks import messages_of_blocks
from pipelines.front_door.served_model import ChatRenderers, ServedModel
from pipelines.text.chat_template import ChatTemplate
from pipelines.wire.chunk import Chunk
from pipelines.wire.request import CompletionRequest
from tests.support.chat_templates import ALL
from tests.unit.front_door.messages.cases import ARGUMENTS, ONE_CALL, SPECIAL, TOKENIZER, WEATHER, written
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


@pytest.mark.parametrize(
    ("system", "messages", "expected"),
    [
        ("Be brief.", [USER], ["system: Be brief.", "user: hot?"]),
        ([text("x-anthropic-billing-header: cch=1"), text("a", cache_control={})], [], ["system: a"]),
        (None, [user(text("a"), text("b")), USER], ["user: a|b|hot?"]),
        (None, [user(RESULT, text("b"))], ["tool: ", "user: b"]),
        (None, [user({**RESULT, "content": "no", "is_error": True})], ["tool: Error:|no"]),
        (None, [user({**RESULT, "content": [text("x")]})], ["tool: x"]),
        (
            None,
            [assistant(THOUGHT, THOUGHT, REDACTED, text("a"), USE)],
            ['assistant: a hmhm call_0001 {"city": "Bonn"}'],
        ),
        (None, [assistant()], ["assistant: "]),
        (None, [{"role": "system", "content": "a"}], ["system: a"]),
        (None, [user({**RESULT, "content": [FOUND]})], ["tool: The tool late can be called now."]),
        (None, [assistant(SERVERS_USE, SERVERS_RESULT, text("a"))], ["assistant: a"]),
        (None, [{"role": "system", "content": [CHANGE]}, USER], ["user: hot?"]),
    ],
)
def test_blocks_become_messages_of_chat(system: Any, messages: Any, expected: list[str]) -> None:
    def told(message: Any) -> str:
        parts = "|".join(part["text"] for part in message["content"])
        words = [f"{message['role']}: {parts}", *filter(None, [message.get("reasoning_content")])]
        for call in message.get("tool_calls", []):
            words += [call["id"], json.dumps(call["function"]["arguments"])]
        return " ".join(words)

    assert [told(message) for message in messages_of_blocks(system, messages)] == expected


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens"),
    ({"messages": [user(text("a"), IMAGE)]}, "messages[0].content[1].type='image'"),
    ({"messages": [user({**RESULT, "content": [IMAGE]})]}, "content[0].content[0].type"),
    ({"messages": [user({"type": "document"})]}, "'document'"),
    ({"messages": [user(USE)]}, "'tool_use'"),
    ({"messages": [assistant({**USE, "input": "{}"})]}, "content[0].input"),
    ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
    ({"messages": [user(1)]}, "messages[0].content[0]"),
    ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role"),
    ({"messages": []}, "messages=[]"),
    ({"system": [IMAGE]}, "system[0].type"),
    ({"tools": [{"name": "a"}]}, "tools[0].input_schema"),
    ({"tools": [{**TOOL, "name": "?"}]}, "tools[0]"),
    ({"tools": [TOOL], "tool_choice": {"type": "all"}}, "tool_choice.type"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice"),
    (
        {"tools": [{"type": "web_search_20250305", "name": "s"}], "tool_choice": {"type": "any"}},
        "tool_choice",
    ),
    ({"thinking": {"type": "on"}}, "thinking"),
    ({"output_config": {"format": {"type": "xml"}}}, "xml"),
    ({"n": 2}, "n"),
    ({"stop": "a"}, "stop"),
    ({"mcp_servers": []}, "mcp_servers"),
    ({"stop_sequences": "a"}, "stop_sequences"),
]


async def test_what_cannot_be_done_is_refused_by_name() -> None:
    async with open_door() as door:
        for changes, named in REFUSED:
            status, document = await door.post({**ASKED, **changes})
            error = document["error"]
            assert (status, document["type"], error["type"]) == (400, "error", "invalid_request_error"), error
            assert named in error["message"] and error["remedy"] and document["request_id"], (named, error)
            assert re.fullmatch(r".+\. [A-Z].+[^.][.?]", error["message"]), error
        for changes, named in REFUSED[1:-1]:
            if not {"tool_choice", "output_config"} & set(changes) and named != "tools[0]":
                body = {"messages": [USER], **changes}
                status, document = await door.post(body, "/v1/messages/count_tokens")
                assert status == 400 and named in document["error"]["message"], (named, document)


async def test_the_tool_runner_of_anthropics_package_learns_to_do_without_a_thread() -> None:
    # anthropic 2.14 begins so, and sends the request again without it if the details of the error say so.
    body = {"model": "m", "max_tokens": 60, "messages": [USER], "tools": [TOOL]}
    async with open_door() as door:
        for thread in ({"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}):
            status, document = await door.post({**body, "thread": thread}, "/v1/messages?beta=true")
            details = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
            assert (status, document["error"]["details"]) == (400, details)
        assert "details" not in (await door.post({**body, "n": 2}))[1]["error"]
        assert (await door.post(body))[0] == 200


async def test_the_only_model_answers_to_any_name_with_its_own() -> None:
    async with open_door() as door:
        assert (await door.answer(model="claude-sonnet-4"))["model"] == "m"


async def test_errors_have_anthropics_types_and_statuses(tmp_path: Path) -> None:
    key = add_key(tmp_path / "keys.json", "alice", 1, 500)
    keys = str(tmp_path / "keys.json")
    async with open_door(checks_model=True, keys=keys, max_body_bytes=3000) as door:
        mine = {"x_api_key": key, "anthropic_version": "2023-06-01"}
        found = [
            await door.post(ASKED),
            await door.post(ASKED, x_api_key="dp-other"),
            await door.post(ASKED, **mine, Origin="http://evil.example"),
            await door.post({**ASKED, "model": "claude"}, **mine),
            await door.post(ASKED, "/v1/messages/batches", **mine),
            await door.post({**ASKED, "system": "a" * 4000}, **mine),
        ]
        assert [(status, document["error"]["type"]) for status, document in found] == [
            (401, "authentication_error"),
            (401, "authentication_error"),
            (403, "permission_error"),
            (404, "not_found_error"),
            (404, "not_found_error"),
            (413, "request_too_large"),
        ]
        for headers in (mine, {"Authorization": f"Bearer {key}"}):
            assert (await door.post(ASKED, **headers))[0] == 200
        for failure, expected in [
            (ServerBusyError("the queue is full"), (529, "overloaded_error")),
            (DraftproofError("broken"), (500, "api_error")),
        ]:
            door.router.failure = failure
            status, document = await door.post({**ASKED, "stream": True}, **mine)
            assert (status, document["error"]["type"]) == expected
        door.router.fails_after = 1
        status, events = await door.post({**ASKED, "stream": True}, **mine)
        assert (status, events[-1]["type"], events[-1]["error"]["type"]) == (200, "error", "api_error")
        reply = await door.client.get("/v1/models", headers={"x-api-key": key})
        assert reply.status == 200


async def test_an_answer_says_why_it_ends() -> None:
    async with open_door() as door:
        message = await door.answer(
            stop_sequences=["END", "EN"], top_k=5, temperature=0.5, metadata={"user_id": "a"}
        )
        assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
        assert message["content"] == [text("Yes.", citations=None)]
        asked = door.router.asked[-1]
        assert (asked.stop_words, asked.top_k, asked.temperature) == (("END", "EN"), 5, 0.5)
        _, counted = await door.post({"messages": [USER], "model": "m"}, "/v1/messages/count_tokens")
        assert counted == {"input_tokens": len(asked.prompt_ids)}
        assert message["usage"] == {
            "input_tokens": len(asked.prompt_ids) - 7,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 7,
            "output_tokens": 4,
        }
        door.router.stop_word = "END!"
        message = await door.answer(stop_sequences=["END", "EN"])
        assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "EN")
        door.router.stop_word, door.router.reason = "", "length"
        assert (await door.answer())["stop_reason"] == "max_tokens"
        assert (await door.answer(max_tokens=32000))["stop_reason"] == "model_context_window_exceeded"
        asked = door.router.asked[-1]
        assert asked.max_tokens + len(asked.prompt_ids) == SIZE
        door.router.answer = ""
        assert (await door.answer())["content"] == []


@pytest.mark.parametrize(
    ("output", "words", "expected"),
    [(b"a END", ("END", "E"), "E"), (b"END", ("N", "END"), "END"), (b"a", ("b",), None), (b"", (), None)],
)
def test_the_stop_word_is_that_of_the_cut(output: bytes, words: Any, expected: str | None) -> None:
    assert first_word(output, words) == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"city": "Bo', {"city": "Bo"}),
        ('{"a": [1, 2], "b', {"a": [1, 2]}),
        ("", {}),
        ('{"a": "\\ud800"}', {"arguments": '{"a": "\\ud800"}'}),
    ],
)
async def test_arguments_that_are_cut_off_are_an_object(arguments: str, expected: Any) -> None:
    async with open_door() as door:
        door.router.answer = '<tool_call>{"name": "get_weather", "arguments": ' + arguments
        door.router.reason = "length"
        answer = await door.answer(tools=[TOOL])
        assert answer["content"][0]["input"] == expected


async def test_thoughts_are_asked_for_and_prefills_are_continued() -> None:
    async with open_door() as door:
        for thinking, is_closed in [
            (None, True),
            ({"type": "disabled"}, True),
            ({"type": "enabled", "budget_tokens": 1024}, False),
            ({"type": "adaptive", "display": "omitted"}, False),
        ]:
            await door.answer(thinking=thinking)
            prompt = TOKENIZER.vocabulary.join(door.router.asked[-1].prompt_ids).decode()
            assert prompt.rstrip().endswith("</think>") == is_closed
        prefill = {"role": "assistant", "content": "It is "}
        await door.answer(messages=[USER, prefill])
        assert TOKENIZER.vocabulary.join(door.router.asked[-1].prompt_ids).endswith(b"It is ")
        for content in ([], [text("a"), USE], [THOUGHT]):
            await door.answer(messages=[USER, assistant(*content)])
            prompt = TOKENIZER.vocabulary.join(door.router.asked[-1].prompt_ids)
            assert prompt.endswith(b"<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")


async def test_tools_choices_and_forms_reach_the_grammar() -> None:
    async with open_door() as door:

        async def guide_with(**changes: Any) -> Any:
            await door.answer(**changes)
            return door.router.asked[-1].guide

        choices = [
            ({"type": "any"}, "required"),
            ({"type": "auto", "disable_parallel_tool_use": True}, "auto"),
            ({"type": "none"}, "none"),
            ({"type": "tool", "name": "get_weather"}, {"type": "function", "name": "get_weather"}),
        ]
        chats = {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER.parameters}}
        door.router.answer = written(HERMES, ("get_weather", ARGUMENTS))
        for choice, chats_choice in choices:
            found = await guide_with(tools=[TOOL], tool_choice=choice)
            parallel = "disable_parallel_tool_use" not in choice
            thoughts = {"enable_thinking": False}
            body = {"messages": [USER], "max_tokens": 9, "tools": [chats], "tool_choice": chats_choice}
            body |= {"parallel_tool_calls": parallel, "chat_template_kwargs": thoughts}
            status, told = await door.post(body, "/v1/chat/completions")
            assert status == 200, told
            assert found == door.router.asked[-1].guide
        message = await door.answer(tools=[{"type": "web_search_20250305", "name": "web_search"}, TOOL])
        assert "web_search_20250305" in message["warnings"][0] and message["stop_reason"] == "tool_use"
        assert message["content"][0]["input"] == json.loads(ARGUMENTS)
        form = {"type": "json_schema", "schema": WEATHER.parameters}
        kind, _ = await guide_with(output_config={"format": form, "effort": "high"})
        assert kind == "json_schema"


LATE = {"name": "late", "input_schema": WEATHER.parameters, "defer_loading": True}
SEARCH = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}
INLINE = {
    "type": "tool_addition",
    "tool": {"type": "tool_definition", "definition": {**TOOL, "name": "late"}},
}
REMOVAL = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "get_weather"}}


@pytest.mark.parametrize(
    ("tools", "between", "told"),
    [
        ([TOOL, LATE], [], "get_weather"),  # as Claude Code 2.1 begins, with a tool that it never finds
        ([TOOL, LATE], [user({**RESULT, "content": [FOUND]})], "get_weather late"),
        ([TOOL, LATE], [assistant(SERVERS_USE, SERVERS_RESULT)], "get_weather late"),
        ([TOOL, LATE], [assistant({**USE, "name": "late"}), user(RESULT)], "get_weather late"),
        ([TOOL, LATE], [{"role": "system", "content": [CHANGE, REMOVAL]}], "late"),
        ([TOOL], [{"role": "system", "content": [INLINE]}], "get_weather late"),
        ([TOOL, SEARCH, LATE], [], "get_weather late"),
        ([{"type": "web_search_20250305", "name": "web_search"}, LATE], [], "late"),
        ([TOOL], [user({**RESULT, "content": [FOUND]})], "get_weather"),  # a tool that has gone meanwhile
    ],
)
async def test_deferred_tools_are_told_of_once_they_were_found(tools: Any, between: Any, told: str) -> None:
    async with open_door() as door:
        message = await door.answer(tools=tools, messages=[USER, *between, USER])
        prompt = TOKENIZER.vocabulary.join(door.router.asked[-1].prompt_ids).decode()
        assert re.findall('"name": "(get_weather|late)"', prompt.partition("</tools>")[0]) == told.split()
        assert ("no search for tools is run here" in str(message.get("warnings"))) == (SEARCH in tools)


async def test_a_choice_tells_of_its_tool_and_what_another_server_did_is_named() -> None:
    async with open_door() as door:
        choice = {"type": "tool", "name": "late"}
        door.router.answer = written(HERMES, ("late", ARGUMENTS))
        message = await door.answer(tools=[TOOL, LATE], tool_choice=choice)
        assert message["content"][0]["name"] == "late"
        search = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
        message = await door.answer(messages=[USER, assistant(search, text("a")), USER])
        assert message["warnings"] == [
            "blocks of type web_search_tool_result were left out: the model cannot read them"
        ]


@pytest.mark.parametrize("template", TEMPLATES)
async def test_what_is_returned_can_be_sent_back_wherever_it_is_cut_off(template: str) -> None:
    """An answer with thoughts, text and calls is cut off after every third character."""
    style = next(style for style in CALL_STYLES if style.name == template)
    calls = ("get_weather", ARGUMENTS), ("get_weather", '{"city": "\\u26c4 \\ud83d\\ude00"}')
    before = "<think>\nSunny? \u2603\n</think>\n\nI ask." if template == "hermes" else ""
    answer = before + written(style, *calls[: 1 if style in ONE_CALL else 2])
    async with open_door(template) as door:
        cuts = [*range(0, len(answer), 3), len(answer)]
        for size in cuts:
            door.router.answer = answer[:size]
            door.router.reason = "stop" if size == cuts[-1] else "length"
            given = {**ASKED, "tools": [TOOL], "thinking": {"type": "enabled"}}
            status, message = await door.post(given)
            assert status == 200, message
            status, events = await door.post({**given, "stream": True})
            assert joined(events) == without_ids(message)
            uses = [block for block in message["content"] if block["type"] == "tool_use"]
            results = [{**RESULT, "tool_use_id": use["id"], "content": "31"} for use in uses]
            history = [USER, assistant(*message["content"]), user(*(results or [text("Go on.")]))]
            status, told = await door.post({**given, "messages": history})
            assert status == 200, (size, message["content"], told)
        assert uses[0]["input"] == json.loads(ARGUMENTS)
        assert message["stop_reason"] == "tool_use"


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(
    ("path", "signs"),
    [
        ("/v1/messages", ["event: ping\n", "event: ping\n"]),
        ("/v1/chat/completions", [":", ":"]),
        (
            "/v1/responses",
            [f"event: response.{name}\n" for name in ("created", "in_progress", "in_progress")],
        ),
    ],
)
async def test_a_stream_gives_signs_of_life_while_the_prompt_is_computed(
    path: str, signs: list[str], fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "QUIET_S", 0.05)
    async with open_door() as door:
        door.router.waits_s, door.router.answer = 0.3, "Yes"
        door.router.failure = ServerBusyError("it is busy") if fails else None
        asked = {"model": "m", "input": "hot?"} if path.endswith("responses") else ASKED
        reply = await door.client.post(path, json={**asked, "stream": True})
        events = (await reply.text()).split("\n\n")
    assert reply.status == 200
    assert all(map(str.startswith, events, signs)), events
    assert ("busy" in "".join(events), "Yes" in "".join(events)) == (fails, not fails)
    places = re.findall(r'"sequence_number":(\d+)', "".join(events))
    assert list(map(int, places)) == list(range(len(places)))
