"""Tests of a response's events: each part of the message is one event, in the order of OpenAI's API."""

from __future__ import annotations

from pipelines.front_door.messages.message import CallArguments, CallBegin, Content, Thought
from pipelines.front_door.messages.response_document import ResponseDocument


def test_each_part_is_an_event_when_it_comes() -> None:
    document = ResponseDocument({})
    kinds = [event["type"] for event in document.begin()]
    arguments = []
    for part in (
        Thought("Sun"),
        Thought("ny?"),
        Content("I ask.", place=9),
        CallBegin("call_1", "get_weather"),
        CallArguments('{"city"'),
        CallArguments(':"Bonn"}'),
    ):
        events = list(document.add(part))
        kinds += [event["type"] for event in events]
        arguments += [event["delta"] for event in events if "arguments.delta" in event["type"]]
    kinds += [event["type"] for event in document.end("stop", {})]
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
    assert document.document["output"][-1]["arguments"] == '{"city":"Bonn"}'
