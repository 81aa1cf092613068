"""Tests of ``/v1/responses`` with OpenAI's own client: whole, streamed, with tools and forms."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import jsonschema
import openai
import pytest
from openai.types.responses import Response

from pipelines.deploy.server import Server
from tests.integration.front_door.conftest import MODEL, url_of
from tests.integration.front_door.test_tools import CALM, SCHEMA, Options, Weather, options

pytestmark = [pytest.mark.triton, pytest.mark.xdist_group("front door")]

__all__ = ["options"]  # a fixture

NO_PARAMETERS = {"type": "object", "maxProperties": 0}
TOOLS: list[Any] = [
    {"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": True},
    {"type": "function", "name": "clock", "parameters": NO_PARAMETERS, "strict": None},
]
ASKED: Options = {"model": MODEL, "input": "import weather\nprint(", "max_output_tokens": 120}
THINKING = {"chat_template_kwargs": {"enable_thinking": True}}


def with_options(options: Options, **changes: Any) -> Options:
    """Return a request without spaces in JSON and without thoughts."""
    extra = {**CALM, "seed": 5, "logit_bias": options["logit_bias"], **changes.pop("extra_body", {})}
    return {**ASKED, "extra_body": extra, **changes}


def calls_of(response: Response) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in response.output if call.type == "function_call"]


def test_a_text_is_that_of_chat(api: openai.OpenAI, options: Options) -> None:
    asked = with_options(options, max_output_tokens=40, include=["reasoning.encrypted_content"])
    response = api.responses.create(**asked, instructions="Be brief.")
    messages: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": ASKED["input"]},
    ]
    chat = api.chat.completions.create(**{**options, "messages": messages, "max_completion_tokens": 40})
    assert response.output_text == chat.choices[0].message.content
    assert response.usage and chat.usage
    assert response.usage.input_tokens == chat.usage.prompt_tokens
    assert response.usage.output_tokens == chat.usage.completion_tokens
    assert (response.status, response.instructions) == ("incomplete", "Be brief.")
    assert response.incomplete_details and response.incomplete_details.reason == "max_output_tokens"
    assert response.model_extra and response.model_extra["seed"] == 5
    events = list(api.responses.create(**asked, instructions="Be brief.", stream=True))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert events[-1].type == "response.incomplete" and "".join(deltas) == response.output_text


def test_events_of_a_stream_give_the_whole_response(api: openai.OpenAI, options: Options) -> None:
    asked = with_options(options, tools=TOOLS[:1], tool_choice="required")
    whole = api.responses.create(**asked)
    events = list(api.responses.create(**asked, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    last = events[-1]
    assert last.type in ("response.completed", "response.incomplete")
    assert calls_of(last.response) == calls_of(whole) != []
    first = last.response.output[0].id
    deltas = [event for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(each.delta for each in deltas if each.item_id == first) == calls_of(whole)[0][1]


def test_pydantic_forms_and_tools_are_parsed(api: openai.OpenAI, options: Options) -> None:
    response = api.responses.parse(**with_options(options), text_format=Weather)
    assert isinstance(response.output_parsed, Weather) and response.status == "completed"
    tool: Any = openai.pydantic_function_tool(Weather)
    flat = {"type": "function", **tool["function"]}
    called = api.responses.parse(
        **with_options(options, tools=[flat], tool_choice={"type": "function", "name": "Weather"})
    )
    [(_, arguments)] = calls_of(called)  # type: ignore[arg-type]
    Weather.model_validate_json(arguments)


def test_clients_streams_keep_up_with_a_form(api: openai.OpenAI, door: Server, options: Options) -> None:
    form = {"type": "json_schema", "name": "w", "schema": SCHEMA, "strict": True}
    asked = with_options(options, text={"format": form})
    with api.responses.stream(**asked) as stream:
        *_, text = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
    jsonschema.validate(json.loads(text), SCHEMA)

    async def streamed() -> str:
        async with openai.AsyncOpenAI(base_url=f"{url_of(door)}/v1", api_key="none", max_retries=0) as client:
            events = await client.responses.create(**asked, stream=True)
            return "".join([each.delta async for each in events if each.type == "response.output_text.delta"])

    assert asyncio.run(streamed()) == text


def test_openai_s_client_continues_reads_and_deletes_a_response(
    api: openai.OpenAI, door: Server, options: Options
) -> None:
    asked = with_options(options, max_output_tokens=8)
    first = api.responses.create(**asked)
    second = api.responses.create(**{**asked, "input": "more"}, previous_response_id=first.id)
    assert second.previous_response_id == first.id
    assert api.responses.retrieve(second.id).output_text == second.output_text
    whole: Any = [
        {"role": "user", "content": ASKED["input"]},
        *[item.model_dump() for item in first.output],
        {"role": "user", "content": "more"},
    ]
    again = api.responses.create(**{**asked, "input": whole}, store=False)
    assert again.output_text == second.output_text and again.usage and second.usage
    assert again.usage.input_tokens == second.usage.input_tokens
    api.responses.delete(first.id)
    assert api.responses.retrieve(second.id).id == second.id
    for unknown in (first.id, again.id):
        with pytest.raises(openai.NotFoundError, match=unknown) as refused:
            api.responses.create(**asked, previous_response_id=unknown)
        assert refused.value.code == "previous_response_not_found"


def test_thoughts_are_an_item(api: openai.OpenAI, options: Options) -> None:
    asked = with_options(options, tools=TOOLS, tool_choice="none", extra_body=THINKING)
    response = api.responses.create(**asked)
    [item] = response.output
    assert item.type == "reasoning" and item.content and item.status == "incomplete"
    assert response.usage
    assert response.usage.output_tokens_details.reasoning_tokens == response.usage.output_tokens == 120
    kinds = {event.type for event in api.responses.create(**asked, stream=True)}
    assert {"response.reasoning_text.delta", "response.reasoning_text.done"} <= kinds
