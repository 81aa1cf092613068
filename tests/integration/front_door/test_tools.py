"""Tests of tools, structured answers and thoughts in ``/v1/chat/completions``, with OpenAI's own client.

The model has random weights. What it writes in JSON is therefore what the grammar makes of it.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Literal

import jsonschema
import openai
import pytest
from openai.types.chat import ChatCompletion
from pydantic import BaseModel

from pipelines.deploy.server import Server
from pipelines.text.vocabulary import Vocabulary
from tests.integration.front_door.conftest import MODEL, get, post, url_of

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


def functions_of(answer: ChatCompletion) -> list[tuple[str, str]]:
    calls = answer.choices[0].message.tool_calls or []
    return [(call.function.name, call.function.arguments) for call in calls if call.type == "function"]


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"get_weather", "clock"}),
        (named("get_weather"), {"get_weather"}),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named("clock")]}},
            {"clock"},
        ),
    ],
    ids=["required", "named", "allowed"],
)
def test_a_call_that_is_asked_for_comes_and_is_the_same_with_every_draft(
    api: openai.OpenAI, options: Options, choice: Any, names: set[str]
) -> None:
    asked = {**options, "tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False}
    found = []
    for changes in ({}, {"num_draft_tokens": 0}, {"num_draft_tokens": 3}):
        answer = api.chat.completions.create(**{**asked, "extra_body": {**CALM, **changes}})
        assert answer.choices[0].message.content is None
        assert answer.choices[0].finish_reason == "tool_calls"
        [(name, arguments)] = functions_of(answer)
        assert name in names
        jsonschema.validate(json.loads(arguments), SCHEMA if name == "get_weather" else {"maxProperties": 0})
        assert answer.usage is not None
        found.append((name, arguments, answer.usage.prompt_tokens))
    assert found[0] == found[1] == found[2]
    every = api.chat.completions.create(**{**asked, "tool_choice": "required"})
    assert every.usage is not None and every.usage.prompt_tokens == found[0][2], "it reads of all tools"


def test_a_streamed_call_is_that_of_the_whole_answer(
    api: openai.OpenAI, door: Server, options: Options
) -> None:
    asked = {**options, "tools": TOOLS, "tool_choice": "required"}
    whole = api.chat.completions.create(**asked)
    with api.chat.completions.stream(**asked) as stream:
        kinds = {event.type for event in stream}
        last = stream.get_final_completion()
    assert functions_of(last) == functions_of(whole) != []  # type: ignore[arg-type]
    assert last.choices[0].finish_reason == whole.choices[0].finish_reason
    assert "tool_calls.function.arguments.delta" in kinds

    async def pieces() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{url_of(door)}/v1", api_key="none", max_retries=0) as client:
            stream = await client.chat.completions.create(**asked, stream=True)
            deltas = [chunk.choices[0].delta async for chunk in stream]
        calls = [call for delta in deltas for call in delta.tool_calls or []]
        return [call.function.arguments or "" for call in calls if call.function]

    assert "".join(asyncio.run(pieces())) == "".join(arguments for _, arguments in functions_of(whole))


def test_pydantic_forms_are_parsed(api: openai.OpenAI, options: Options) -> None:
    parsed = api.chat.completions.parse(**options, response_format=Weather)
    assert isinstance(parsed.choices[0].message.parsed, Weather)
    tool = openai.pydantic_function_tool(Weather)
    called = api.chat.completions.parse(
        **options, tools=[tool], tool_choice="required", parallel_tool_calls=False
    )
    assert called.choices[0].message.tool_calls is not None
    assert isinstance(called.choices[0].message.tool_calls[0].function.parsed_arguments, Weather)


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
def test_an_answer_has_the_asked_form(door: Server, options: Options, changes: Any, form: Any) -> None:
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


@pytest.mark.parametrize(("strict", "status"), [(True, 400), (False, 200)])
def test_a_schema_that_cannot_be_enforced_is_refused_if_it_is_strict(
    door: Server, strict: bool, status: int
) -> None:
    schema = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}
    function = {"name": "f", "parameters": schema, "strict": strict}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": strict}}
    tools = {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    for changes in (tools, {"response_format": form}):
        response = post(door, "/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 9, **changes})
        assert response.status_code == status
        assert not strict or '"not"' in response.json()["error"]["message"]


def test_models_are_described(door: Server) -> None:
    [model] = get(door, "/v1/models").json()["data"]
    assert model["chat"] == {"tool_calls": "hermes", "reasoning": True}
    assert model["default_sampling_params"]["temperature"] == 1.0
    assert set(model["default_sampling_sources"].values()) == {"built-in"}
