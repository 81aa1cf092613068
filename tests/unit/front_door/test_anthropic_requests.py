"""Tests of requests of Anthropic's API: blocks become messages of a chat, and the rest is refused by name."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from pipelines.front_door.requests.message_blocks import messages_of_blocks
from tests.unit.front_door.messages.cases import TOKENIZER
from tests.unit.front_door.scripted_door import (
    ASKED,
    CHANGE,
    FOUND,
    REDACTED,
    RESULT,
    SERVERS_RESULT,
    SERVERS_USE,
    THOUGHT,
    TOOL,
    USE,
    USER,
    assistant,
    open_door,
    text,
    user,
)


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
