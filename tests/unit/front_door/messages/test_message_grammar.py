"""Tests of the grammars of answers: what they allow, and that what they allow is read."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest

from pipelines.errors import InvalidRequestError
from pipelines.front_door.messages.answer_format import lark_of
from pipelines.front_door.messages.call_styles.call_style import CallStyle
from pipelines.front_door.messages.call_styles.json_calls import HERMES, LLAMA_3, MISTRAL_NAMES
from pipelines.front_door.messages.message import CallArguments, CallBegin, Content, Part, Thinking
from pipelines.front_door.messages.reader import MessageReader
from pipelines.front_door.messages.style import CALL_STYLES
from pipelines.front_door.messages.tools import Calling, parameters_of
from pipelines.text.grammar import RequestGrammar
from pipelines.text.guides import Guide
from tests.unit.front_door.messages.cases import (
    ARGUMENTS,
    COMPILER,
    ONE_CALL,
    TOKENIZER,
    TOOLS,
    guide_of_answer,
    message_style,
    tokens,
    written,
)

JSON_FORM = ("json_schema", json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}}))
WITHOUT_THOUGHTS = Thinking.NONE
ENDS_OF_TEXTS = ("\n</parameter>", "]]></param>", "</param>", '<|"|>')
NAMED = {style.name: style for style in CALL_STYLES}


def follows(guide: tuple[str, str] | None, text: str) -> str:
    """Return whether a text is an answer ("whole"), begins one ("begun") or is none ("")."""
    assert guide is not None
    grammar = COMPILER.compile(Guide(*guide))
    output: list[int] = []
    for token_id in tokens(text):
        if not grammar.after(np.array(output, np.int32)).allowed()[token_id]:
            return ""
        output.append(token_id)
    return "whole" if grammar.after(np.array(output, np.int32)).may_end else "begun"


def guide_of(
    calls: CallStyle, mode: Any = "auto", thinking: Thinking = WITHOUT_THOUGHTS, parallel: bool = True
) -> tuple[str, str] | None:
    return guide_of_answer(message_style(calls), thinking, Calling(TOOLS, mode, parallel), None)


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("mode", ["auto", "required"])
def test_calls_are_allowed_as_the_model_writes_them(name: str, mode: str) -> None:
    style = NAMED[name]
    guide = guide_of(style, mode)
    assert follows(guide, written(style, ("get_weather", ARGUMENTS))) == "whole"
    assert follows(guide, written(style, ("clock.now", "{}"))) == "whole"
    as_text = "whole" if style.is_bare and mode == "auto" else ""
    assert follows(guide, written(style, ("get_whether", "{}"))) == as_text, "JSON of no function"
    assert follows(guide, written(style, ("get_weather", '{"days": 1}'))) == "", "city is required"
    assert follows(guide, written(style, ("clock.now", '{"a": 1}'))) == ""
    assert follows(guide, written(style, ("clock.now", "{}")) + " done") == ""
    assert follows(guide, "It rains.") == ("whole" if mode == "auto" else "")
    if style not in ONE_CALL:
        two = written(style, ("clock.now", "{}"), ("get_weather", '{"city":"a"}'))
        assert follows(guide, two) == "whole"
        assert follows(guide_of(style, mode, parallel=False), two) == ""
    if not style.is_bare and mode == "auto":
        assert follows(guide, "Let me see.\n" + written(style, ("clock.now", "{}"))) == "whole"


@pytest.mark.parametrize("name", NAMED)
def test_without_calls_no_mark_is_allowed(name: str) -> None:
    style = NAMED[name]
    guide = guide_of(style, "none")
    assert follows(guide, "Let me see {}.") == "whole"
    assert follows(guide, "Look: " + style.mark) == ""
    assert follows(guide, written(style, ("clock.now", "{}"))) == ""


def test_ids_of_calls_may_stand_behind_names() -> None:
    text = "[TOOL_CALLS]clock.now[CALL_ID]abcDEF123[ARGS]{}"
    assert follows(guide_of(MISTRAL_NAMES), text) == "whole"
    assert follows(guide_of(MISTRAL_NAMES), text.replace("123", "-23")) == ""


def test_llama_may_write_its_tag_before_a_call() -> None:
    call = written(LLAMA_3, ("clock.now", "{}"))
    assert follows(guide_of(LLAMA_3), "<|python_tag|>" + call) == "whole"
    assert follows(guide_of(LLAMA_3), "<|python_tag|>print(1)") == ""


@pytest.mark.parametrize(
    "text",
    [
        '{"names": 1}',
        '{"name": "Ann", "age": 3}',
        '{"name": "clock.now"}',
        '{"name": "Ann", "parameters": {}}',
    ],
)
def test_json_that_calls_no_function_is_text(text: str) -> None:
    assert follows(guide_of(LLAMA_3), text) == "whole"
    reader = MessageReader(Thinking.NONE, LLAMA_3, functions=TOOLS)
    parts = [part for letter in text for part in reader.read(letter)] + reader.end()
    assert "".join(part.text for part in parts if isinstance(part, Content)) == text


@pytest.mark.parametrize(
    ("thinking", "text", "found"),
    [
        (Thinking.NONE, '{"a": 1}', "whole"),
        (Thinking.NONE, '<think>x</think>{"a": 1}', ""),
        (Thinking.POSSIBLE, '{"a": 1}', "whole"),
        (Thinking.POSSIBLE, '<think>\n{"a": "no" <tool_call>\n</think>\n\n{"a": 1}', "whole"),
        (Thinking.POSSIBLE, "<think>x</think>\n\n{'", ""),
        (Thinking.POSSIBLE, "<think>x", "begun"),
        (Thinking.BEGUN, 'so {"a": "b"}</think>{"a": 1}', "whole"),
        (Thinking.BEGUN, '{"a": 1}', "begun"),
    ],
)
def test_a_form_begins_after_the_thoughts(thinking: Thinking, text: str, found: str) -> None:
    assert follows(guide_of_answer(message_style(HERMES), thinking, None, JSON_FORM), text) == found


@pytest.mark.parametrize("content", [("regex", "[a-c/]+/"), ("choice", '["ab/", "\\"c"]'), ("json", "")])
def test_every_form_can_stand_behind_thoughts(content: tuple[str, str]) -> None:
    guide = guide_of_answer(message_style(None), Thinking.BEGUN, None, content)
    good = {"regex": "ab/", "choice": '"c', "json": '{"x": [null]}'}[content[0]]
    assert follows(guide, f"hm</think>\n{good}") == "whole"
    assert follows(guide, "hm</think>\nx") == ""


def test_thoughts_of_a_model_open_no_call() -> None:
    guide = guide_of(HERMES, "auto", Thinking.POSSIBLE)
    call = written(HERMES, ("clock.now", "{}"))
    assert follows(guide, f"<think>maybe <tool_call> x</think>\n\nSo:\n{call}") == "whole"
    assert follows(guide, f"<think>maybe {call}") == "begun", "thoughts must end"
    assert follows(guide, call) == "whole"
    assert follows(guide_of(HERMES, "required", Thinking.POSSIBLE), f"<think>a</think>\n{call}") == "whole"
    assert follows(guide_of(HERMES, "required", Thinking.BEGUN), f"a</think>\n\nb{call}") == ""


def test_text_beside_tools_may_have_a_form() -> None:
    calling = Calling(TOOLS, "auto")
    guide = guide_of_answer(message_style(HERMES), Thinking.POSSIBLE, calling, JSON_FORM)
    assert follows(guide, '{"a": 1}') == "whole"
    assert follows(guide, "<think></think>\n" + written(HERMES, ("clock.now", "{}"))) == "whole"
    assert follows(guide, "text") == ""
    with pytest.raises(InvalidRequestError, match="both are bare JSON"):
        guide_of_answer(message_style(LLAMA_3), WITHOUT_THOUGHTS, calling, JSON_FORM)
    with pytest.raises(InvalidRequestError, match="grammar cannot follow thoughts"):
        guide_of_answer(message_style(HERMES), Thinking.BEGUN, None, ("lark_grammar", 'start: "a"'))


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("mode", ["auto", "required"])
@pytest.mark.parametrize("thinking", list(Thinking))
def test_what_a_grammar_allows_is_read_whole(name: str, mode: str, thinking: Thinking) -> None:
    """A model that writes at random what is allowed: its calls are valid, and nothing of them is text."""
    style = NAMED[name]
    guide = guide_of(style, mode, thinking)
    assert guide is not None
    schemas = {function.name: parameters_of(function) for function in TOOLS}
    num_calls = 0
    for seed in range(8):
        rng = random.Random(seed)
        begin = "</think>" if thinking is Thinking.BEGUN else ""
        if mode == "required" or rng.random() < 0.7:
            begin += written(style, ("clock.now", "{}")).partition("{}" if style.is_bare else "clock.now")[0]
        text = random_answer(Guide(*guide), rng, begin)
        reader = MessageReader(
            thinking, style, functions=TOOLS, is_structured=mode == "required", new_id=lambda: "id"
        )
        parts = [*reader.read(text), *reader.end()]
        names = [part.name for part in parts if isinstance(part, CallBegin)]
        arguments = ["".join(each) for each in arguments_of(parts)]
        for function, given in zip(names, arguments, strict=True):
            jsonschema.validate(json.loads(given), schemas[function])
        num_calls += len(names)
        content = "".join(part.text for part in parts if isinstance(part, Content))
        assert style.mark not in content and (mode == "auto" or not content), text
    assert num_calls >= (8 if mode == "required" else 1)


def arguments_of(parts: list[Part]) -> list[list[str]]:
    """Return the pieces of the arguments of each call."""
    found: list[list[str]] = []
    for part in parts:
        if isinstance(part, CallBegin):
            found.append([])
        elif isinstance(part, CallArguments):
            found[-1].append(part.text)
    return found


def test_a_schema_that_is_nested_too_deeply_is_left_to_the_compiler() -> None:
    assert lark_of(("json_schema", "[" * 100_000)) == "%json " + "[" * 100_000


def is_allowed(grammar: RequestGrammar, output: list[int], more: list[int]) -> bool:
    """Return whether these tokens may follow an output."""
    for place, token_id in enumerate(more):
        if not grammar.after(np.array(output + more[:place], np.int32)).allowed()[token_id]:
            return False
    return True


def random_answer(guide: Guide, rng: random.Random, begin: str) -> str:
    """Return an answer of random allowed tokens, which prefers those that lead to its end."""
    grammar = COMPILER.compile(guide)
    output = tokens(begin)
    while len(output) < 1000:
        ends = [tokens(end) for end in ENDS_OF_TEXTS if rng.random() < 0.2]
        output += next((end for end in ends if is_allowed(grammar, output, end)), [])
        state = grammar.after(np.array(output, np.int32))
        allowed = np.flatnonzero(state.allowed()).tolist()
        if state.may_end and (not allowed or rng.random() < 0.5):
            return TOKENIZER.vocabulary.join_with_special(output, 10**6).decode(errors="replace")
        closing = [
            each for each in allowed if TOKENIZER.vocabulary.bytes_of[each] in (b'"', b"}", b"]", b"<")
        ]
        plain = [each for each in allowed if each < 256 and TOKENIZER.vocabulary.bytes_of[each].isascii()]
        output.append(rng.choice(closing if closing and rng.random() < 0.6 else plain or allowed))
    raise AssertionError(f"no end in {TOKENIZER.vocabulary.join(output)!r}")
