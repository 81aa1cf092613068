"""Tests of tools, structured answers and thoughts in ``/v1/chat/completions``, with OpenAI's own client.

The model has random weights. What it writes in JSON is therefore what the grammar makes of it.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Literal

import httpx
import jsonschema
import openai
import pytest
from pydantic import BaseModel

from pipelines.deploy.server import Server
from pipelines.text.vocabulary import Vocabulary
from tests.integration.front_door.conftest import MODEL, post, url_of

pytestmark = [pytest.mark.triton, pytest.mark.xdist_group("front door")]

MESSAGES: list[Any] = [{"role": "user", "content": "import weather\nprint("}]
SCHEMA = {
    "type": "object",
    "properties": {"unit": {"enum": ["celsius", "kelvin"]}, "sky": {"type": "boolean"}},
    "required": ["unit", "sky"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "clock", "description": "The time."}},
]
Options = dict[str, Any]
CALM: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": False}}
FORM = {"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA}}


@pytest.fixture(scope="module")
def options(door_directory: Path) -> Options:
    """Return the common fields of requests, without spaces, which the model would write into JSON."""
    pair = json.loads((door_directory / "model_repository/speculative/pair.json").read_text())
    vocabulary = Vocabulary.from_file(Path(pair["target_engine_dir"]) / "tokenizer.json")
    spaces = [token_id for token_id, text in enumerate(vocabulary.bytes_of) if text.isspace()]
    return {
        "model": MODEL,
        "messages": MESSAGES,
        "seed": 5,
        "max_completion_tokens": 120,
        "logit_bias": {str(token_id): -100 for token_id in spaces},
        "extra_body": CALM,
    }


class Weather(BaseModel):
    """The form of an answer."""

    unit: Literal["celsius", "kelvin"]
    is_sunny: bool


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_call_that_is_asked_for_comes_and_is_the_same_with_every_draft(
    api: openai.OpenAI, options: Options, choice: Any
) -> None:
    asked = {**options, "tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False}
    functions = []
    for changes in ({}, {"num_draft_tokens": 0}, {"num_draft_tokens": 3}):
        [found] = api.chat.completions.create(**{**asked, "extra_body": {**CALM, **changes}}).choices
        assert found.message.content is None and found.message.tool_calls is not None
        [call] = found.message.tool_calls
        assert call.type == "function" and call.id.startswith("call_")
        assert found.finish_reason == "tool_calls"
        assert choice == "required" or call.function.name == "get_weather"
        schema = SCHEMA if call.function.name == "get_weather" else {"maxProperties": 0}
        jsonschema.validate(json.loads(call.function.arguments), schema)
        functions.append(call.function)
    assert functions[0] == functions[1] == functions[2]


@pytest.mark.parametrize("name", ["get_weather", "clock"])
def test_only_calls_that_are_allowed_come_though_the_model_reads_all_tools(
    api: openai.OpenAI, options: Options, name: str
) -> None:
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": name}}]}
    choice: Any = {"type": "allowed_tools", "allowed_tools": allowed}
    every = api.chat.completions.create(**options, tools=TOOLS, tool_choice="required")
    answers = [
        api.chat.completions.create(
            **{**options, "extra_body": {**CALM, **changes}}, tools=TOOLS, tool_choice=choice
        )
        for changes in ({}, {"num_draft_tokens": 0})
    ]
    functions = [
        [call.function for call in answer.choices[0].message.tool_calls or [] if call.type == "function"]
        for answer in answers
    ]
    assert functions[0] == functions[1] and {function.name for function in functions[0]} == {name}
    assert {answer.usage and answer.usage.prompt_tokens for answer in (every, *answers)} == {
        every.usage and every.usage.prompt_tokens
    }


def test_a_streamed_call_is_that_of_the_whole_answer(api: openai.OpenAI, options: Options) -> None:
    asked = {**options, "tools": TOOLS, "tool_choice": "required"}
    whole = api.chat.completions.create(**asked).choices[0]
    with api.chat.completions.stream(**asked) as stream:
        kinds = {event.type for event in stream}
        last = stream.get_final_completion().choices[0]
    assert whole.message.tool_calls and last.message.tool_calls
    assert [call.function.arguments for call in last.message.tool_calls] == [
        call.function.arguments for call in whole.message.tool_calls
    ]
    assert last.finish_reason == whole.finish_reason
    assert "tool_calls.function.arguments.delta" in kinds


def test_pydantic_forms_are_parsed(api: openai.OpenAI, options: Options) -> None:
    parsed = api.chat.completions.parse(**options, response_format=Weather)
    assert isinstance(parsed.choices[0].message.parsed, Weather)
    tool = openai.pydantic_function_tool(Weather)
    called = api.chat.completions.parse(
        **options, tools=[tool], tool_choice="required", parallel_tool_calls=False
    )
    assert called.choices[0].message.tool_calls is not None
    assert isinstance(called.choices[0].message.tool_calls[0].function.parsed_arguments, Weather)


def test_the_async_client_streams_calls(door: Server, options: Options) -> None:
    async def arguments() -> str:
        async with openai.AsyncOpenAI(base_url=f"{url_of(door)}/v1", api_key="none", max_retries=0) as api:
            stream = await api.chat.completions.create(
                **options, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, stream=True
            )
            deltas = [chunk.choices[0].delta async for chunk in stream]
        calls = [call for delta in deltas for call in delta.tool_calls or []]
        return "".join(call.function.arguments or "" for call in calls if call.function)

    assert isinstance(json.loads(asyncio.run(arguments())), dict)


def test_a_conversation_with_results_is_rendered(door: Server) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "clock", "arguments": '{"a": "\u00e9"}'}}
    conversation = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
        {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
    ]
    tokens = post(door, "/tokenize", {"messages": conversation, "tools": TOOLS}).json()["tokens"]
    text = post(door, "/detokenize", {"tokens": tokens}).json()["prompt"]
    assert '<tool_call>\n{"name": "clock", "arguments": {"a": "\u00e9"}}\n</tool_call>' in text
    assert '"description": "The time."' in text and "tool\nnoon" in text


@pytest.mark.parametrize(
    ("changes", "form"),
    [
        ({"response_format": {"type": "json_object"}}, "{"),
        ({"response_format": FORM}, SCHEMA),
        ({"structured_outputs": {"json": SCHEMA}}, SCHEMA),
        ({"structured_outputs": {"choice": ["red", "green"]}}, ("red", "green")),
        ({"structured_outputs": {"regex": "[ab]{3}"}}, ("a", "b")),
        ({"structured_outputs": {"grammar": 'root ::= "yes" | "no"'}}, ("yes", "no")),
    ],
)
def test_an_answer_has_the_form_that_is_asked_for(
    door: Server, options: Options, changes: Any, form: Any
) -> None:
    common = {"max_tokens": 120, "seed": 3, "logit_bias": options["logit_bias"], **changes}
    chat = {"messages": MESSAGES, **common}
    message = post(door, "/v1/chat/completions", chat).json()["choices"][0]["message"]
    alone = post(door, "/v1/chat/completions", {**chat, "num_draft_tokens": 0}).json()["choices"][0]
    assert alone["message"] == message
    answer = post(door, "/v1/completions", {"prompt": "a", **common}).json()["choices"][0]["text"]
    for text in (message["content"], answer):
        if isinstance(form, dict):
            jsonschema.validate(json.loads(text), form)
        else:
            assert text.startswith(form)


def test_thoughts_stand_beside_the_answer(api: openai.OpenAI, options: Options) -> None:
    """The template of requests with tools thinks; the random model never ends its thoughts."""
    asked = {**options, "tools": TOOLS, "tool_choice": "none", "response_format": FORM}
    thinking = {**asked, "extra_body": {"chat_template_kwargs": {"enable_thinking": True}}}
    message = api.chat.completions.create(**thinking).choices[0].message
    thoughts = message.model_extra["reasoning_content"] if message.model_extra else ""
    assert message.content is None and thoughts
    with api.chat.completions.create(**thinking, stream=True) as stream:
        deltas = [chunk.choices[0].delta.model_extra or {} for chunk in stream]
    for name in ("reasoning_content", "reasoning"):
        assert "".join(delta.get(name, "") for delta in deltas) == thoughts
    calm = api.chat.completions.create(**asked).choices[0].message
    jsonschema.validate(json.loads(calm.content or ""), SCHEMA)
    assert "reasoning_content" not in (calm.model_extra or {})


def test_a_schema_that_cannot_be_enforced_is_refused_if_it_is_strict(door: Server, options: Options) -> None:
    schema = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}
    for strict, status in ((True, 400), (False, 200)):
        function = {"name": "f", "parameters": schema, "strict": strict}
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": strict}}
        tools = {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
        for changes in (tools, {"response_format": form}):
            response = post(door, "/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 9, **changes})
            assert response.status_code == status
            assert strict is False or '"not"' in response.json()["error"]["message"]


def test_models_are_described(door: Server) -> None:
    [model] = httpx.get(f"{url_of(door)}/v1/models", trust_env=False).json()["data"]
    assert model["chat"] == {"tool_calls": "hermes", "reasoning": True}
    assert model["default_sampling_params"]["temperature"] == 1.0
