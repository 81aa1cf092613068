"""Tests of fields: all of OpenAI's and vLLM's are used, accepted, or refused with the reason."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
from contextlib import nullcontext
from typing import Any

import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsBase as CompletionParams
from openai.types.responses.response_create_params import ResponseCreateParamsBase as ResponseParams

from pipelines.errors import InvalidRequestError
from pipelines.front_door.endpoints.chat import ChatBody
from pipelines.front_door.endpoints.completions import CompletionBody
from pipelines.front_door.endpoints.responses import ResponsesBody
from pipelines.front_door.errors import error_document
from pipelines.front_door.messages.call_styles.tagged_calls import QWEN_XML
from pipelines.front_door.messages.message import Thinking
from pipelines.front_door.messages.style import MessageStyle
from pipelines.front_door.messages.tools import Calling, Function
from pipelines.front_door.requests.fields import IDLE_FIELDS, parse_body, read_body
from pipelines.front_door.requests.sampling import sampling_request
from pipelines.wire.request import CompletionRequest
from tests.unit.front_door.messages.cases import guide_of_answer

LEAST: dict[Any, dict[str, Any]] = {
    ChatBody: {"messages": [{"role": "user", "content": "a"}]},
    CompletionBody: {"prompt": "a"},
    ResponsesBody: {"input": "a"},
}
# Of vLLM's protocol.py: https://github.com/vllm-project/vllm/tree/main/vllm/entrypoints/openai
VLLM = """
top_k min_p repetition_penalty length_penalty stop_token_ids include_stop_str_in_output ignore_eos min_tokens
skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens prompt_logprobs allowed_token_ids
bad_words structured_outputs priority request_id logits_processors return_tokens_as_token_ids return_token_ids
kv_transfer_params vllm_xargs max_repetition_pattern_size min_repetition_pattern_size
repetition_min_count repetition_detection use_beam_search add_special_tokens logit_bias seed stop n echo
"""
VLLM_CHAT = """
include_reasoning add_generation_prompt continue_final_message documents chat_template chat_template_kwargs
mm_processor_kwargs thinking_token_budget
"""


def parse(kind: Any, **fields: Any) -> Any:
    return parse_body(kind, json.dumps({**LEAST[kind], **fields}).encode())


@pytest.mark.parametrize(
    ("kind", "published"),
    [
        (ChatBody, {*ChatParams.__annotations__, *VLLM.split(), *VLLM_CHAT.split()}),
        (CompletionBody, {*CompletionParams.__annotations__, *VLLM.split(), "prompt_embeds"}),
        (
            ResponsesBody,
            {*ResponseParams.__annotations__, "enable_response_messages", "previous_input_messages"},
        ),
    ],
)
def test_every_field_of_openai_and_vllm_is_decided(kind: Any, published: set[str]) -> None:
    idle = {name for each in IDLE_FIELDS for name in each.names}
    assert published - {field.name for field in dataclasses.fields(kind)} - idle == set()


@pytest.mark.parametrize("idle", IDLE_FIELDS, ids=lambda each: each.names[0])
def test_values_that_change_nothing_are_accepted_and_others_refused_by_name(idle: Any) -> None:
    for name in idle.names:
        kind = next(each for each in LEAST if name not in {field.name for field in dataclasses.fields(each)})
        for value in idle.accepted if idle.accepted is not None else ("a", 1, {"b": []}):
            assert parse(kind, **{name: value}) == parse(kind)
        if idle.accepted is not None:
            with pytest.raises(InvalidRequestError) as caught:
                parse(kind, **{name: "other"})
            error = error_document(caught.value)["error"]
            assert error["param"] == name and idle.reason in error["what"] and error["remedy"]


FUNCTION = {"name": "clock", "parameters": {"type": "object"}}


def test_tools_that_are_no_functions_are_left_out_and_named() -> None:
    others = [{"type": "web_search"}, {"type": "custom", "name": "x", "format": {"type": "text"}}]
    namespace = {"type": "namespace", "name": "n", "tools": [{"type": "function", **FUNCTION}]}
    tool = {"type": "function", **FUNCTION, "strict": False, "cache_control": {"type": "ephemeral"}}
    body = parse(ResponsesBody, tools=[*others, tool, namespace])
    assert [function.name for function in body.functions] == ["clock"]
    [warning] = body.warnings
    assert "custom, namespace, web_search" in warning
    body = parse(
        ChatBody, tools=[{"type": "function", "cache_control": {}, "function": {**FUNCTION, "async": 1}}]
    )
    assert [function.name for function in body.functions] == ["clock"] and not body.warnings
    with pytest.raises(InvalidRequestError, match="is unknown"):
        parse(ChatBody, warnings=["a"])


def test_seeds_below_all_others_are_drawn() -> None:
    seeds = {sampling_request(parse(CompletionBody, seed=-1), CompletionRequest(), 4).seed for _ in range(3)}
    assert len(seeds) == 3 and min(seeds) >= 0  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("kind", "fields", "told"),
    [
        (ChatBody, {"response_format": {"type": "json_object", "schema": {"uniqueItems": True}}}, True),
        (ChatBody, {"tools": [{"function": {"name": "f", "parameters": {"if": {}}}}]}, True),
        (ChatBody, {"tools": [{"function": {**FUNCTION, "strict": True}}]}, False),
        (ResponsesBody, {"text": {"format": {"type": "json_schema", "schema": {"uniqueItems": True}}}}, True),
        (CompletionBody, {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, False),
    ],
)
def test_what_no_grammar_enforces_of_a_schema_is_told(kind: Any, fields: Any, told: bool) -> None:
    body = asyncio.run(read_body(kind, json.dumps({**LEAST[kind], **fields}).encode()))
    assert bool(body.warnings) is told
    assert all("not enforced whole: Unimplemented keys" in warning for warning in body.warnings)


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"properties": {"a": {"type": "string", "pattern": "b", "title": "A"}}}, "pattern of a"),
        (
            {
                "properties": {"a": {"anyOf": [{"enum": ["b"]}, {"$ref": "#/$defs/N"}]}},
                "$defs": {"N": {"minLength": 1}},
            },
            "enum of a, minLength of a",
        ),
        (
            {"additionalProperties": {"type": "string", "minLength": 1}, "minProperties": 1},
            "minProperties of the arguments, minLength of others",
        ),
        (
            {
                "properties": {"a": {"type": ["string", "null"], "anyOf": [{"type": "null"}]}},
                "required": ["b"],
            },
            "required of the arguments, anyOf of a",
        ),
        (
            {
                "properties": {
                    "a": {"$ref": "#/$defs/a~1b", "maxLength": 3},
                    "b": {"$ref": "https://x.test/s"},
                    "c": {"$ref": "#/$defs/a~1b", "title": "C"},
                },
                "$defs": {"a/b": {"type": "string"}},
            },
            "$ref of a, maxLength of a, $ref of b",
        ),
        (
            {"properties": {"a": {"$ref": "#/$defs/C"}}, "$defs": {"C": {"anyOf": [{"$ref": "#/$defs/C"}]}}},
            "",
        ),
        (
            {"properties": {"a": {"enum": ["b"], "type": "string"}, "c": {"type": "integer", "minimum": 1}}},
            "",
        ),
    ],
)
def test_what_no_grammar_of_tags_enforces_is_told_or_refused_if_strict(parameters: Any, told: str) -> None:
    tools = [{"function": {"name": "f", "parameters": parameters}}]
    content = json.dumps({**LEAST[ChatBody], "tools": tools}).encode()
    warnings = asyncio.run(read_body(ChatBody, content, QWEN_XML)).warnings
    prefix = "the schema of the function f is not enforced whole: "
    found = {warning.removeprefix(prefix) for warning in warnings if " of " in warning.removeprefix(prefix)}
    assert found == {*filter(None, told.split(", "))}
    strict = Calling((Function(name="f", parameters=parameters, strict=True),), "auto")
    with pytest.raises(InvalidRequestError, match=re.escape(told)) if told else nullcontext():
        guide_of_answer(MessageStyle(QWEN_XML), Thinking.NONE, strict, None)


@pytest.mark.parametrize(
    ("reasoning", "thinks"), [({}, True), ({"effort": "none"}, False), ({"enabled": False}, False)]
)
def test_reasoning_is_that_of_responses_in_chat_too(reasoning: Any, thinks: bool) -> None:
    for kind in (ChatBody, ResponsesBody):
        variables = parse(kind, reasoning=reasoning).variables()
        assert variables == ({} if thinks else {"enable_thinking": False})
        with pytest.raises(InvalidRequestError, match=r"reasoning\.max_tokens"):
            parse(kind, reasoning={"max_tokens": 3}).variables()
