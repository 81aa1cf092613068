"""Tests of reading messages: the same parts however the text is divided, and whole."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.front_door.messages.call_styles.call_style import CallStyle
from pipelines.front_door.messages.call_styles.json_calls import HERMES, LLAMA_3, MISTRAL_NAMES
from pipelines.front_door.messages.call_styles.tagged_calls import QWEN_XML
from pipelines.front_door.messages.message import (
    CallArguments,
    CallBegin,
    Content,
    MessageDocument,
    Part,
    Thinking,
)
from pipelines.front_door.messages.reader import MessageReader
from pipelines.front_door.messages.style import CALL_STYLES
from pipelines.front_door.messages.tools import Function
from tests.support.examples import examples
from tests.unit.front_door.messages.cases import ARGUMENTS, ONE_CALL, WEATHER, written

FUNCTIONS = [Function(name=name, parameters=WEATHER.parameters) for name in ("f", "f.g-h", "g")]
NAMED = {style.name: style for style in CALL_STYLES}
MARKS = "<tool_cal", "</thi", "<think>", "</think>", "[TOOL", '{"name": "', '{"nam', "<tool_call>", "[ARGS]"
FENCED = '```json\n{"name": "f", "arguments": {"a": "\\n```"}}\n```'
BARE = FENCED[8:-4]
TOOLS = f"<tools>\n{BARE}\n</tools>"
TEXTS = (
    st.sampled_from([FENCED, FENCED[:-4], BARE, "```json\n", "```", TOOLS, f"<tools>{BARE}", "</tools>"])
    | st.text('ab<>{}[]"\\ \n', max_size=12)
    | st.sampled_from([*MARKS, "S\u00e3o"])
)


def message_of(
    pieces: list[str], thinking: Thinking, style: CallStyle | None, *, is_structured: bool = False
) -> tuple[dict[str, object], list[dict[str, object]]]:
    """Return the message that pieces of text give, and its deltas."""
    numbers = iter(range(100))
    reader = MessageReader(
        thinking,
        style,
        functions=FUNCTIONS,
        is_structured=is_structured,
        new_id=lambda: f"call_{next(numbers)}",
    )
    document = MessageDocument()
    parts: list[Part] = [part for piece in pieces for part in reader.read(piece)]
    deltas = [document.add(part) for part in [*parts, *reader.end()]]
    return document.document, deltas


def joined(deltas: list[dict[str, object]]) -> dict[str, object]:
    """Return the message of deltas, as clients join them."""
    message: dict[str, object] = {}
    calls: list[dict[str, dict[str, str]]] = []
    for delta in deltas:
        for name in ("content", "reasoning", "reasoning_content"):
            if name in delta:
                message[name] = f"{message.get(name, '')}{delta[name]}"
        for call in delta.get("tool_calls", []):  # type: ignore[attr-defined]
            index = call.pop("index")
            if index == len(calls):
                calls.append(call)
            else:
                calls[index]["function"]["arguments"] += call["function"]["arguments"]
    return {**message, **({"tool_calls": calls} if calls else {})}


@examples(400)
@given(
    texts=st.lists(TEXTS, max_size=6),
    style=st.sampled_from([None, *CALL_STYLES]),
    thinking=st.sampled_from(Thinking),
    is_structured=st.booleans(),
    cuts=st.data(),
    has_call=st.booleans(),
)
def test_any_division_of_a_text_gives_the_same_message(
    texts: list[str],
    style: CallStyle | None,
    thinking: Thinking,
    is_structured: bool,
    cuts: st.DataObject,
    has_call: bool,
) -> None:
    if style is not None and has_call:
        texts.insert(cuts.draw(st.integers(0, len(texts))), written(style, ("f", ARGUMENTS)))
    text = "".join(texts)
    places = sorted(cuts.draw(st.sets(st.integers(0, len(text)), max_size=12)))
    pieces = [text[begin:end] for begin, end in pairwise([0, *places, len(text)])]
    whole, _ = message_of([text], thinking, style, is_structured=is_structured)
    found, deltas = message_of(pieces, thinking, style, is_structured=is_structured)
    assert found == whole
    told = {name: value for name, value in whole.items() if name != "role" and value}
    assert joined(deltas) == told
    if style is None and thinking is Thinking.NONE:
        assert whole["content"] == text


def test_what_stands_before_arguments_is_left_out_however_it_is_divided() -> None:
    pieces = ["[TOOL_CALLS]f[ARGS]<", '<{"a": 1}']
    whole, _ = message_of(["".join(pieces)], Thinking.NONE, MISTRAL_NAMES)
    found, _ = message_of(pieces, Thinking.NONE, MISTRAL_NAMES)
    assert found == whole
    assert whole["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": 1}'}  # type: ignore[index]


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("num_calls", [1, 2])
def test_calls_are_read(name: str, size: int, num_calls: int) -> None:
    style, called = NAMED[name], [("f.g-h", ARGUMENTS), ("g", "{}")][:num_calls]
    if num_calls == 2 and style in ONE_CALL:
        return
    said = "First:" if num_calls == 2 else None
    text = (said or "") + written(style, *called)
    pieces = [text[place : place + size] for place in range(0, len(text), size)]
    message, _ = message_of(pieces, Thinking.NONE, style)
    calls = [
        {"id": f"call_{number}", "type": "function", "function": {"name": function, "arguments": arguments}}
        for number, (function, arguments) in enumerate(called)
    ]
    assert message == {"role": "assistant", "content": said, "refusal": None, "tool_calls": calls}


@pytest.mark.parametrize(
    ("text", "thinking", "thoughts", "content"),
    [
        ("<think>\na b\n</think>\n\nc \n", Thinking.POSSIBLE, "a b", "c \n"),
        ("a</think>b", Thinking.BEGUN, "a", "b"),
        ("a </thin", Thinking.BEGUN, "a </thin", ""),
        ("a</think>", Thinking.NONE, None, "a</think>"),
        (" <thin", Thinking.POSSIBLE, None, " <thin"),
        (" hi", Thinking.POSSIBLE, None, " hi"),
        ("<think></think>c", Thinking.POSSIBLE, None, "c"),
        ("<think>a <tool_call> b</think>c", Thinking.POSSIBLE, "a <tool_call> b", "c"),
    ],
)
def test_thoughts_are_told_from_the_answer(
    text: str, thinking: Thinking, thoughts: str | None, content: str
) -> None:
    for style in (HERMES, None):
        message, _ = message_of(list(text), thinking, style)
        assert message.get("reasoning_content") == message.get("reasoning") == thoughts
        assert (message["content"] or "") == content


@pytest.mark.parametrize(
    ("style", "text", "content", "num_calls"),
    [
        (HERMES, "So <tool_call>\n{", "So", 0),
        (HERMES, '<tool_call>{"name": "f", "arguments": {"a"', None, 1),
        (HERMES, f"So:\n\n{FENCED}\n", "So:", 1),
        (HERMES, f"{FENCED}\n{FENCED}", None, 2),
        (HERMES, FENCED[:-3], None, 1),
        (HERMES, f"\n{BARE}\n", None, 1),
        (HERMES, f"{BARE}.", f"{BARE}.", 0),
        (HERMES, BARE[:-1], BARE[:-1], 0),
        (HERMES, BARE.replace("}}", '}, "name": []}'), BARE.replace("}}", '}, "name": []}'), 0),
        (HERMES, BARE.replace('{"a"', '{"b": NaN, "a"'), BARE.replace('{"a"', '{"b": NaN, "a"'), 0),
        (HERMES, BARE.replace('{"a"', '{"b": "\\ud800", "a"'), None, 1),
        (HERMES, f"So {BARE}", f"So {BARE}", 0),
        (HERMES, FENCED[:-5], FENCED[:-5], 0),
        (HERMES, f"{FENCED[:-3]}and so on", f"{FENCED[:-3]}and so on", 0),
        (HERMES, FENCED.replace('"f"', '"h"'), FENCED.replace('"f"', '"h"'), 0),
        (HERMES, FENCED.replace("}}", '}, "b": 1}'), FENCED.replace("}}", '}, "b": 1}'), 0),
        (HERMES, "See ```json\n{}\n```", "See ```json\n{}\n```", 0),
        (HERMES, TOOLS, None, 1),
        (HERMES, f"So:\n{TOOLS}\n{TOOLS}\nDone", "So:Done", 2),
        (HERMES, f"<tools>{BARE} {BARE}\n{BARE}</tools>", None, 3),
        (HERMES, f"<tools>\n{BARE}\n{BARE}", None, 2),
        (HERMES, f"{TOOLS}\n{FENCED}", None, 2),
        (HERMES, "Write <tools>, then JSON.", "Write <tools>, then JSON.", 0),
        (HERMES, f"<tools> {BARE} or so", f"<tools> {BARE} or so", 0),
        (HERMES, TOOLS.replace('"f"', '"h"'), TOOLS.replace('"f"', '"h"'), 0),
        (HERMES, f"`{TOOLS[:-9]}\n```", f"`{TOOLS[:-9]}\n```", 0),
        (HERMES, TOOLS[:-12], TOOLS[:-12], 0),
        (HERMES, FENCED.replace('{"a"', "{" * 3000 + '"a"'), FENCED.replace('{"a"', "{" * 3000 + '"a"'), 0),
        (QWEN_XML, FENCED, FENCED, 0),
        (QWEN_XML, TOOLS, TOOLS, 0),
        (LLAMA_3, '{"name": "f', '{"name": "f', 0),
        (LLAMA_3, '{"nam', '{"nam', 0),
        (LLAMA_3, 'a {"name": "f", "parameters": {}}', 'a {"name": "f", "parameters": {}}', 0),
        (LLAMA_3, '<|python_tag|>{"name": "f", "parameters": {}}', None, 1),
        (MISTRAL_NAMES, "[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{}", None, 1),
    ],
)
def test_answers_cut_off_or_odd(style: CallStyle, text: str, content: str | None, num_calls: int) -> None:
    message, _ = message_of(list(text), Thinking.NONE, style)
    calls = message.get("tool_calls", [])
    assert isinstance(calls, list)
    assert (message["content"], len(calls)) == (content, num_calls)


def test_a_second_block_is_text_if_calls_may_not_be_parallel() -> None:
    reader = MessageReader(Thinking.NONE, HERMES, functions=FUNCTIONS, is_parallel=False)
    parts = [*reader.read(FENCED), *reader.read(FENCED), *reader.end()]
    assert [type(part) for part in parts] == [CallBegin, CallArguments, Content]
    reader = MessageReader(Thinking.NONE, HERMES, functions=FUNCTIONS, is_parallel=False)
    parts = [*reader.read(f"<tools>{BARE}{BARE}</tools>"), *reader.end()]
    assert {type(part) for part in parts} == {Content}


def test_ids_are_what_templates_accept() -> None:
    mistral, other = MISTRAL_NAMES.new_id(), HERMES.new_id()
    assert len(mistral) == 9 and mistral.isalnum()
    assert other.startswith("call_") and other != HERMES.new_id()
