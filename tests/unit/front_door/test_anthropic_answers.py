"""Tests of answers of Anthropic's API: blocks, events and errors, which can be sent back."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pipelines.errors import DraftproofError, ServerBusyError
from pipelines.front_door import delivery
from pipelines.front_door.access.key_file import add_key
from pipelines.front_door.endpoints.anthropic import first_word
from pipelines.front_door.messages.style import CALL_STYLES
from tests.unit.front_door.messages.cases import ARGUMENTS, ONE_CALL, written
from tests.unit.front_door.messages.test_round_trip import TEMPLATES
from tests.unit.front_door.scripted_door import (
    ASKED,
    RESULT,
    SIZE,
    TOOL,
    USER,
    assistant,
    joined,
    open_door,
    text,
    user,
    without_ids,
)


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
