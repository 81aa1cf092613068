"""Tests of answers that come back as history: they are rendered as the model wrote them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipelines.errors import ChatTemplateError, InvalidRequestError
from pipelines.front_door.endpoints.responses import ResponsesBody, messages_of
from pipelines.front_door.messages.call_styles.json_calls import MISTRAL_NAMES
from pipelines.front_door.messages.message import MessageDocument, Thinking
from pipelines.front_door.messages.reader import MessageReader
from pipelines.front_door.requests.conversation import Message, chat_prompt
from pipelines.front_door.requests.fields import parse_body
from pipelines.front_door.served_model import ChatRenderers, ServedModel, TokenIds
from pipelines.text.chat_template import ChatTemplate
from pipelines.wire.request import CompletionRequest
from tests.support.chat_templates import ALL
from tests.unit.front_door.messages.cases import ONE_CALL, SPECIAL, TOKENIZER, TOOLS, response_of, written

TEMPLATES = {
    "hermes": ALL["chatml"],
    "llama3_json": ALL["tools_llama_3_1"],
    "mistral_list": ALL["tools_mistral_3"],
    "mistral_names": ALL["tools_mistral_11"],
    "qwen3_xml": ALL["tools_qwen_xml"],
    "minicpm5": ALL["tools_minicpm"],
}
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
ARGUMENTS = '{"city": "S\u00e3o \\"}{\\" <b> & \'Paulo\' \\\\ \u2603", "days": 2}'


Served = Callable[[str], ServedModel]


@pytest.fixture
def served() -> Iterator[Served]:
    """Return a function that makes a model with a chat template."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def make(source: str) -> ServedModel:
            chat = ChatRenderers(ChatTemplate({"default": source}, SPECIAL_TOKENS, SPECIAL))
            stack.callback(chat.close)
            return ServedModel(
                name="m",
                fingerprint="f",
                max_seq_len=8192,
                max_requests=8,
                created_s=0,
                tokenizer=TOKENIZER,
                defaults=CompletionRequest(),
                chat=chat,
            )

        yield make


def render(model: ServedModel, *conversation: Any, **options: Any) -> tuple[str, Thinking]:
    """Return the prompt of a conversation; arguments are those of ``chat_prompt``."""
    return as_text(asyncio.run(chat_prompt(model, *conversation, **options)))


def as_text(prompt: tuple[TokenIds, Thinking]) -> tuple[str, Thinking]:
    ids, thinking = prompt
    return TOKENIZER.vocabulary.join_with_special(ids, 10**6).decode(), thinking


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("num_calls", [1, 2])
def test_an_answer_that_comes_back_is_rendered_as_the_model_wrote_it(
    name: str, num_calls: int, served: Served
) -> None:
    model = served(TEMPLATES[name])
    style = model.style(with_tools=True)
    assert style.calls is not None and style.calls.name == name
    if num_calls == 2 and style.calls in ONE_CALL:
        return
    text = written(style.calls, *[("get_weather", ARGUMENTS), ("clock.now", "{}")][:num_calls])
    reader, document = MessageReader(Thinking.NONE, style.calls, functions=TOOLS), MessageDocument()
    for part in [*reader.read(text), *reader.end()]:
        document.add(part)
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": "31 \u00b0C"}
        for call in document.document["tool_calls"]
    ]
    messages = [{"role": "user", "content": "hot?"}, document.document, *results]
    found, _ = render(model, messages, TOOLS)
    if style.calls is MISTRAL_NAMES:  # its template adds the ids that the model left out
        for call in document.document["tool_calls"]:
            assert f"{call['function']['name']}[CALL_ID]{call['id']}[ARGS]" in found
            found = found.replace(f"[CALL_ID]{call['id']}", "")
    assert text.replace("[TOOL_CALLS][", "[TOOL_CALLS] [") in found


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(name=st.sampled_from(sorted(TEMPLATES)), data=st.data())
def test_every_answer_however_cut_off_can_be_sent_back(name: str, data: Any, served: Served) -> None:
    model = served(TEMPLATES[name])
    style = model.style(with_tools=True)
    assert style.calls is not None
    call = ("clock.now", ARGUMENTS)
    one = written(style.calls, call)
    two = one if style.calls in ONE_CALL else written(style.calls, call, call)
    thoughts = data.draw(st.sampled_from(["", "<think>\nso\n</think>\n\n"]))
    answer = thoughts + data.draw(st.sampled_from(["", "text \u2603", one, two]))
    cut = answer[: data.draw(st.integers(0, len(answer)))]
    reader = MessageReader(Thinking.POSSIBLE, style.calls, functions=TOOLS)
    message = MessageDocument()
    for part in [*reader.read(cut), *reader.end()]:
        message.add(part)
    again = MessageReader(Thinking.POSSIBLE, style.calls, functions=TOOLS)
    response = response_of(again, cut, ends="length")
    user: Message = {"role": "user", "content": "and?"}
    calls = message.document.get("tool_calls", [])
    results: list[Message] = [{"role": "tool", "tool_call_id": call["id"], "content": "1"} for call in calls]
    outputs = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "1"}
        for item in response["output"]
        if item["type"] == "function_call"
    ]
    for messages in (
        [user, message.document, *results, *([] if results else [user])],
        messages_of([user, *response["output"], *outputs, *([] if outputs else [user])]),
    ):
        found, _ = render(model, messages, TOOLS)
        assert "None" not in found


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, Thinking.POSSIBLE),
        ({"enable_thinking": True}, Thinking.POSSIBLE),
        ({"enable_thinking": False}, Thinking.NONE),
    ],
)
def test_the_prompt_says_whether_thoughts_follow(variables: Any, expected: Thinking, served: Served) -> None:
    model = served(ALL["chatml"])
    user = {"role": "user", "content": "<think>"}
    assert render(model, [user], variables=variables)[1] is expected
    for content, thinking in (
        ("<think>a", Thinking.BEGUN),
        ("<think>a</think>b", Thinking.NONE),
        ("b", Thinking.NONE),
    ):
        last = {"role": "assistant", "content": content}
        found = render(model, [user, last], continue_final_message=True)
        assert found[1] is thinking and found[0].endswith(content)


def test_thoughts_and_roles_reach_the_template(served: Served) -> None:
    model = served(ALL["chatml"])
    messages: list[Any] = [
        {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d", "reasoning": "e", "refusal": None, "function_call": None},
    ]
    found, _ = render(model, messages, add_generation_prompt=False)
    assert found == (
        "<|im_start|>system\na\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n"
        "<|im_start|>assistant\n<think>\ne\n</think>\n\nd<|im_end|>\n"
    )


def test_items_of_an_earlier_response_become_one_message_and_its_results() -> None:
    def call(number: int) -> dict[str, Any]:
        return {"name": "clock.now", "arguments": "{}", "call_id": f"call_{number}", "type": "function_call"}

    def result(number: int) -> dict[str, Any]:
        return {"type": "function_call_output", "call_id": f"call_{number}", "output": "noon"}

    thoughts = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "x"}]}
    said = {"type": "message", "role": "assistant", "content": "I look."}
    function = {"name": "clock.now", "arguments": "{}"}
    calls = [{"id": f"call_{number}", "type": "function", "function": function} for number in (1, 2)]
    results = [{"role": "tool", "content": "noon", "tool_call_id": f"call_{number}"} for number in (1, 2)]
    found = messages_of(
        [{"role": "user", "content": "time?"}, thoughts, said, call(1), call(2), result(1), result(2)]
    )
    assert found == [
        {"role": "user", "content": "time?"},
        {"role": "assistant", "content": "I look.", "reasoning_content": "x", "tool_calls": calls},
        *results,
    ]


def test_what_codex_sends_is_rendered(served: Served) -> None:
    items: list[Any] = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Sandbox."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "patch"}]},
        {
            "type": "custom_tool_call",
            "call_id": "c1",
            "name": "apply",
            "input": "*** Begin",
            "status": "completed",
        },
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"},
        {"type": "function_call", "call_id": "c2", "name": "clock.now", "arguments": '{"a'},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "noon"}]},
    ]
    sent = {"input": items, "instructions": "Be brief.", "truncation": "auto", "store": False, "stream": True}
    sent |= {
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "k",
        "client_metadata": {"a": "b"},
    }
    body = parse_body(ResponsesBody, json.dumps(sent).encode())
    found, _ = as_text(asyncio.run(body.rendered(served(ALL["chatml"]))))
    assert found.count("<|im_start|>system\nBe brief.\n\nSandbox.<|im_end|>") == 1
    assert '{"name": "apply", "arguments": {"input": "*** Begin"}}' in found
    assert '{"name": "clock.now", "arguments": {}}' in found and "done" in found and "noon" in found
    probe = parse_body(ResponsesBody, b'{"input": [], "max_output_tokens": 1}')
    assert "user" in as_text(asyncio.run(probe.rendered(served(ALL["chatml"]))))[0]
    with pytest.raises(InvalidRequestError, match="item_reference"):
        messages_of([{"type": "item_reference", "id": "msg_1"}])


def test_what_a_template_refuses_is_refused(served: Served) -> None:
    model = served(ALL["tools_mistral_3"])
    call = {"id": "short", "type": "function", "function": {"name": "clock.now", "arguments": "{}"}}
    messages = (
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    )
    with pytest.raises(ChatTemplateError, match="length 9"):
        render(model, messages, TOOLS)
