"""The acceptance cases of Open Responses, written anew from its schema (2026-04-24), with plain HTTP.

The model is random: it answers as long as it is told to, and calls a function only where it must. What a text
model cannot do is refused with an error that names it (``docs/reference/openai.md``).
"""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from pipelines.deploy.server import Server
from tests.integration.front_door.conftest import MODEL, events_of, post
from tests.integration.front_door.test_tools import CALM, Options, options
from tests.unit.front_door.test_kept_responses import REQUIRED

pytestmark = [pytest.mark.triton, pytest.mark.xdist_group("front door")]

__all__ = ["options"]  # a fixture

PATH = "/v1/responses"
EVENT = TypeAdapter[Any](ResponseStreamEvent)


def said(role: str, content: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content}


WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather at a place",
    "parameters": {
        "type": "object",
        "properties": {"location": {"enum": ["Paris", "Rome"], "description": "city"}},
        "required": ["location"],
        "additionalProperties": False,
    },
}
CALLING = {
    "input": [said("user", "How is the weather in Rome?")],
    "tools": [WEATHER],
    "tool_choice": "required",
}
TALKS = {
    "a text": "Say hello in three words.",
    "a message": [said("user", "Say hello in three words.")],
    "a system message": [said("system", "You are a pirate."), said("user", "Say hello.")],
    "a developer message": [said("developer", "You are a pirate."), said("user", "Say hello.")],
    "several turns": [
        said("user", "My name is Alice."),
        {**said("assistant", "Hello Alice!"), "phase": "final_answer"},
        said("user", [{"type": "input_text", "text": "What is my name?"}]),
    ],
}


@pytest.fixture(scope="module")
def talk() -> Options:
    """Return the fields with which the random model ends its answer after eight tokens."""
    return {"model": MODEL, "min_tokens": 8, "logit_bias": {"0": 100}, **CALM}  # its end token


@pytest.fixture(scope="module")
def call(options: Options) -> Options:
    """Return the fields with which the random model calls a function."""
    return {"model": MODEL, "seed": 5, "logit_bias": options["logit_bias"], **CALM}


def check(response: dict[str, Any] | None) -> None:
    """Check the types by OpenAI's own models, and the keys by the schema of Open Responses."""
    if response is not None:
        Response.model_validate(response, strict=True)
        assert set(response) >= REQUIRED


def answered(door: Server, body: dict[str, Any]) -> dict[str, Any]:
    """Ask; returns a response that follows the schema and is complete."""
    reply = post(door, PATH, body)
    assert reply.status_code == 200, reply.text
    response: dict[str, Any] = reply.json()
    check(response)
    assert response["status"] == "completed" and response["output"]
    return response


def streamed(door: Server, body: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Ask for a stream of events that follow the schema; returns their types and the complete response."""
    events = [event for event in events_of(door, PATH, body) if event != "[DONE]"]
    for event in events:
        EVENT.validate_python(event, strict=True)
        check(event.get("response"))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    response: dict[str, Any] = events[-1]["response"]
    assert response["status"] == "completed"
    return [event["type"] for event in events], response


def calls_of(response: dict[str, Any]) -> list[dict[str, Any]]:
    return [item for item in response["output"] if item["type"] == "function_call"]


@pytest.mark.parametrize("given", TALKS.values(), ids=TALKS)
def test_a_conversation_is_answered(given: Any, door: Server, talk: Options) -> None:
    [item] = answered(door, {**talk, "input": given})["output"]
    assert item["role"] == "assistant" and item["content"][0]["text"]


def test_an_answer_is_streamed(door: Server, talk: Options) -> None:
    kinds, response = streamed(door, {**talk, "input": TALKS["a message"]})
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert {"response.output_text.delta", "response.output_text.done"} <= set(kinds)
    assert response["output"][0]["content"][0]["text"]


def test_a_function_is_called_and_its_output_continues_the_conversation(
    door: Server, talk: Options, call: Options
) -> None:
    response = answered(door, {**call, **CALLING})
    [called] = calls_of(response)
    assert called["name"] == "get_weather"
    output = {"type": "function_call_output", "call_id": called["call_id"], "output": "64 degrees and clear"}
    after = answered(door, {**talk, "previous_response_id": response["id"], "input": [output]})
    assert after["previous_response_id"] == response["id"]


def test_a_call_is_streamed(door: Server, call: Options) -> None:
    kinds, response = streamed(door, {**call, **CALLING})
    assert {"response.function_call_arguments.delta", "response.function_call_arguments.done"} <= set(kinds)
    assert calls_of(response)


def test_a_response_is_continued_by_its_id(door: Server, talk: Options) -> None:
    first = answered(door, {**talk, "input": "Remember the word papaya."})
    second = answered(door, {**talk, "input": "Which word?", "previous_response_id": first["id"]})
    assert second["usage"]["input_tokens"] > first["usage"]["total_tokens"]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (
            {"input": [said("user", [{"type": "input_image", "image_url": "data:image/png;base64,AA=="}])]},
            "image",
        ),
        (
            {"input": [said("user", [{"type": "input_file", "filename": "a.pdf", "file_data": "AA=="}])]},
            "file",
        ),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "item_reference"),
        ({"input": [{"type": "compaction", "encrypted_content": "AA=="}]}, "compaction"),
        ({"tools": [{"type": "file_search"}], "tool_choice": {"type": "file_search"}}, "file_search"),
        ({"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "web_search"),
        ({"background": True}, "background"),
    ],
)
def test_what_a_text_model_without_a_database_cannot_do_is_refused_by_name(
    changes: dict[str, Any], named: str, door: Server, talk: Options
) -> None:
    reply = post(door, PATH, {**talk, "input": "Hello.", **changes})
    assert reply.status_code == 400, reply.text
    assert named in reply.json()["error"]["message"]
