"""Tests of a response's events: each part of the message is one event, in the order of OpenAI's API."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pipelines.front_door.endpoints.response_format import ResponseFormat
from pipelines.front_door.messages.call_styles.json_calls import HERMES
from pipelines.front_door.messages.message import Thinking
from pipelines.front_door.messages.reader import MessageReader
from pipelines.front_door.messages.style import MessageStyle
from pipelines.wire.request import CompletionRequest
from tests.unit.front_door.messages.cases import TOOLS, chunk_of

PIECES = (
    *("<think>Sun", "ny?", "</think>I ask.", '<tool_call>{"name": "get_weather", "arguments": '),
    *('{"city"', ':"Bonn"}', "}</tool_call>"),
)


def test_each_part_is_an_event_when_it_comes() -> None:
    model: Any = SimpleNamespace(name="m", fingerprint="f", style=lambda **_: MessageStyle())
    kept: list[dict[str, Any]] = []
    reader = MessageReader(Thinking.POSSIBLE, HERMES, functions=TOOLS)
    form = ResponseFormat({}, model, CompletionRequest(prompt_ids=(1,)), reader, kept.append)
    events = [event for piece in PIECES for event in form.events(0, chunk_of(piece))]
    events += form.events(0, chunk_of("", "stop"))
    kinds = [event["type"] for event in events]
    arguments = [event["delta"] for event in events if "arguments.delta" in event["type"]]
    text = ["output_item.added", "content_part.added"]
    assert [kind.removeprefix("response.") for kind in kinds] == [
        "created",
        "in_progress",
        *text,
        "reasoning_text.delta",
        "reasoning_text.delta",
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *text,
        "output_text.delta",
        *("output_text.done", "content_part.done", "output_item.done"),
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.delta",
        *("function_call_arguments.done", "output_item.done"),
        "completed",
    ]
    assert arguments == ['{"city"', ':"Bonn"}']
    assert kept[0]["output"][-1]["arguments"] == '{"city":"Bonn"}'
