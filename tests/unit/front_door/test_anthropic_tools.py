"""Tests of tools of Anthropic's API: choices, and tools that are found later."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from pipelines.front_door.messages.call_styles.json_calls import HERMES
from tests.unit.front_door.messages.cases import ARGUMENTS, TOKENIZER, WEATHER, written
from tests.unit.front_door.scripted_door import (
    CHANGE,
    FOUND,
    RESULT,
    SERVERS_RESULT,
    SERVERS_USE,
    TOOL,
    USE,
    USER,
    assistant,
    open_door,
    text,
    user,
)


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
