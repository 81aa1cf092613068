"""Tests of gpt-oss's messages: recognised, limited by a grammar, read in any pieces, and sent back."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from pipelines.errors import InvalidRequestError
from pipelines.front_door.endpoints.responses import messages_of
from pipelines.front_door.messages.call_styles.harmony import HARMONY
from pipelines.front_door.messages.grammar import AnswerPlan
from pipelines.front_door.messages.message import MessageDocument, Thinking
from pipelines.front_door.messages.style import MessageStyle
from pipelines.front_door.messages.tools import Calling
from tests.support.chat_templates import ALL
from tests.unit.front_door.messages.cases import HARMONY_IDS, TOOLS, WEATHER, guide_of_answer, response_of
from tests.unit.front_door.messages.test_message_grammar import JSON_FORM, follows
from tests.unit.front_door.messages.test_round_trip import Served, render, served

__all__ = ["served"]
SOURCE = ALL["tools_harmony"]
STYLE = MessageStyle.of(SOURCE, HARMONY_IDS)
NEXT = "<|end|><|start|>assistant"
THOUGHTS = f"<|channel|>analysis<|message|>Hot? \u2603{NEXT}"
REMARK = f"<|channel|>commentary<|message|>I look.{NEXT}"
ARGUMENTS = '{"city": "S\u00e3o \\"}{\\" <|end|>", "days": 2}'
CALL = f"<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{ARGUMENTS}"
OTHER_CALL = f" to=functions.get_weather<|channel|>commentary json<|message|>{ARGUMENTS}"
FINAL = "<|channel|>final<|message|>"


AUTO = Calling(TOOLS, "auto")


def read(
    pieces: list[str], thinking: Thinking = Thinking.POSSIBLE, calling: Calling | None = AUTO
) -> dict[str, Any]:
    reader, document = AnswerPlan(STYLE, calling, None).new_reader(thinking), MessageDocument()
    for part in [*(part for piece in pieces for part in reader.read(piece)), *reader.end()]:
        document.add(part)
    return document.document


def test_it_is_recognised_where_its_marks_are_special() -> None:
    assert STYLE.calls is HARMONY and STYLE.thoughts is not None
    assert MessageStyle.of(SOURCE, {}).calls is None
    assert MessageStyle.of(SOURCE, {**HARMONY_IDS, "</s>": 1}).special == HARMONY_IDS


@pytest.mark.parametrize(
    ("answer", "content", "thoughts", "has_call"),
    [
        (THOUGHTS + FINAL + "Yes.", "Yes.", "Hot? \u2603", False),
        (FINAL + "Yes.", "Yes.", None, False),
        (THOUGHTS + CALL, None, "Hot? \u2603", True),
        (THOUGHTS + REMARK + OTHER_CALL + "<|call|>", "I look.", "Hot? \u2603", True),
        (CALL, None, None, True),
        (REMARK + THOUGHTS + FINAL + "Yes.", "I look.\n\nYes.", "Hot? \u2603", False),
        (f"<|channel|>commentary<|message|>{NEXT}{FINAL}Yes.", "Yes.", None, False),
        ("Yes, told plainly.", "Yes, told plainly.", None, False),
        (" to=functions.get_wea", None, None, False),
    ],
)
def test_channels_become_the_parts_of_a_message(
    answer: str, content: str | None, thoughts: str | None, has_call: bool
) -> None:
    found = read([answer])
    assert (found["content"] or None, found.get("reasoning")) == (content, thoughts)
    calls = [
        (call["function"]["name"], call["function"]["arguments"]) for call in found.get("tool_calls", [])
    ]
    assert calls == [("get_weather", ARGUMENTS)] * has_call
    for seed in range(20):
        places = sorted(random.Random(seed).sample(range(len(answer)), 6))
        pieces = [answer[a:b] for a, b in zip([0, *places], [*places, len(answer)], strict=True)]
        assert {**read(pieces), "tool_calls": 0} == {**found, "tool_calls": 0}


@pytest.mark.parametrize("calling", [None, Calling(TOOLS, "none"), Calling(TOOLS[1:], "auto")])
def test_calls_of_functions_that_are_not_offered_are_text(calling: Calling | None) -> None:
    found = read([CALL.replace("<|end|>", "")], calling=calling)
    assert "tool_calls" not in found and found["content"] == ARGUMENTS.replace("<|end|>", "")


def test_an_answer_that_is_continued_has_the_guide_of_what_it_is_inside() -> None:
    for calling in (None, AUTO, Calling(TOOLS, "none")):
        assert guide_of_answer(STYLE, Thinking.NONE, calling, None) is None
        assert guide_of_answer(STYLE, Thinking.NONE, calling, JSON_FORM) == JSON_FORM
    required = Calling(TOOLS, "required")
    with pytest.raises(InvalidRequestError, match="continue_final_message"):
        guide_of_answer(STYLE, Thinking.NONE, required, None)
    guide = guide_of_answer(STYLE, Thinking.BEGUN, required, None)
    assert follows(guide, f"hm{NEXT}{CALL.replace(' <|end|>', '')}") == "whole"
    assert follows(guide, CALL) == ""


def test_an_answer_that_is_continued_begins_inside_a_message() -> None:
    assert read(["es."], Thinking.NONE)["content"] == "es."
    assert read(["hm", NEXT, FINAL, "a"], Thinking.BEGUN)["reasoning"] == "hm"


@pytest.mark.parametrize(
    ("mode", "content", "answer", "expected"),
    [
        ("auto", None, THOUGHTS + FINAL + "Yes.", "whole"),
        ("auto", None, THOUGHTS + REMARK + CALL, "whole"),
        ("auto", None, OTHER_CALL, "whole"),
        ("auto", None, CALL.replace('"days": 2', '"days": "2"'), ""),
        ("auto", None, CALL.replace("get_weather", "get_time"), ""),
        ("required", None, THOUGHTS + CALL, "whole"),
        ("required", None, THOUGHTS + FINAL + "Yes.", ""),
        ("required", None, THOUGHTS, "begun"),
        ("none", None, CALL, ""),
        (None, JSON_FORM, THOUGHTS + FINAL + '{"a": 1}', "whole"),
        (None, JSON_FORM, FINAL + "no", ""),
        (None, JSON_FORM, REMARK + FINAL + '{"a": 1}', ""),
    ],
)
def test_the_grammar_allows_these_answers(mode: Any, content: Any, answer: str, expected: str) -> None:
    calling = Calling(TOOLS, mode) if mode else None
    guide = guide_of_answer(STYLE, Thinking.POSSIBLE, calling, content)
    text = answer.replace('<|end|>"', '"')  # in a string of JSON it would be text, not the special token
    assert follows(guide, text) == expected
    assert guide_of_answer(STYLE, Thinking.POSSIBLE, None, None) is None


def test_every_answer_however_cut_off_can_be_sent_back(served: Served) -> None:
    model, user = served(SOURCE), {"role": "user", "content": "and?"}
    assert render(model, [user], [WEATHER])[1] is Thinking.POSSIBLE
    answer = THOUGHTS + CALL
    for end in range(0, len(answer) + 1, 3):
        message = read([answer[:end]])
        reader = AnswerPlan(STYLE, Calling(TOOLS, "auto"), None).new_reader(Thinking.POSSIBLE)
        response = response_of(reader, answer[:end], ends="length")
        for sent in ([message], response["output"]):
            found, _ = render(model, [user, *messages_of([*sent]), user], TOOLS)
            assert "None" not in found
    whole, _ = render(model, [user, read([answer]), user], TOOLS)
    assert f"{THOUGHTS.removesuffix(NEXT)}<|end|>" in whole and json.dumps(json.loads(ARGUMENTS))[:9] in whole
