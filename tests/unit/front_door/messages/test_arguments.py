"""Tests of arguments that are no JSON: the types of the schema, streamed, cut off anywhere."""

from __future__ import annotations

import json
import random
import time

import pytest
from pydantic import JsonValue

from pipelines.errors import InvalidRequestError
from pipelines.front_door.messages import schemas
from pipelines.front_door.messages.call_styles.call_style import MOST_READING_S, CallStyle
from pipelines.front_door.messages.call_styles.tagged_calls import MINICPM, QWEN_XML
from pipelines.front_door.messages.message import CallArguments, Thinking, read_arguments
from pipelines.front_door.messages.reader import MessageReader
from pipelines.front_door.messages.tools import Calling, Function
from tests.attacks.guides import slow_to_read_function
from tests.unit.front_door.messages.cases import TOOLS, guide_of_answer, message_style, written
from tests.unit.front_door.messages.test_message_grammar import follows

EDIT = Function(
    name="edit",
    parameters={
        "type": "object",
        "$defs": {
            "Place": {"type": "object", "properties": {"line": {"type": "integer"}}},
            "Tree": {
                "properties": {"in": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}},
                "type": "object",
            },
        },
        "properties": {
            "code": {"type": "string"},
            "at": {"$ref": "#/$defs/Place"},
            "lines": {"type": "array", "items": {"type": ["integer", "null"]}},
            "force": {"type": "boolean"},
            "mode": {"enum": ["add", "cut\n<b>"]},
            "tree": {"$ref": "#/$defs/Tree"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "sizes": {"type": "object", "additionalProperties": {"type": "integer"}},
        },
        "required": ["code", "at"],
    },
)
VALUES = {
    "code": 'if a < "é": </parameter> <tool_call> {"name": \\n ☃\n',
    "at": {"line": 3},
    "lines": [1, None],
    "force": True,
    "mode": "cut\n<b>",
    "tree": {"in": [{"in": []}, {}]},
    "note": "5",
    "sizes": {"a": 1, "b": 2},
}
STYLES = pytest.mark.parametrize("style", [QWEN_XML, MINICPM], ids=lambda style: style.name)


def arguments_of(style: CallStyle, pieces: list[str]) -> str:
    reader = MessageReader(Thinking.NONE, style, functions=(EDIT, *TOOLS))
    parts = [part for piece in pieces for part in reader.read(piece)] + reader.end()
    return "".join(part.text for part in parts if isinstance(part, CallArguments))


@STYLES
@pytest.mark.parametrize("note", ["5", "null", "", " two \n\n lines ", "</function>", None])
def test_values_have_the_types_of_the_schema(style: CallStyle, note: str | None) -> None:
    values = {**VALUES, "note": note}
    text = written(style, ("edit", json.dumps(values)))
    guide = guide_of_answer(message_style(style), Thinking.NONE, Calling((EDIT, *TOOLS), "auto"), None)
    assert follows(guide, text) == "whole"
    found = json.loads(arguments_of(style, [text]))
    # Without quotes, the text "null" cannot be told from the value.
    assert found == {**values, "note": None if note == "null" else note}


@STYLES
def test_a_call_may_be_cut_off_anywhere_and_arrive_in_any_pieces(style: CallStyle) -> None:
    text = written(style, ("edit", json.dumps(VALUES)))
    whole = arguments_of(style, [text])
    for end in range(len(text)):
        cut = arguments_of(style, [text[:end]])
        rng = random.Random(end)
        places = sorted(rng.sample(range(end + 1), min(end + 1, 6)))
        pieces = [text[begin:end] for begin, end in zip([0, *places], [*places, end], strict=True)]
        assert arguments_of(style, pieces) == cut
        assert whole.startswith(cut)
        assert VALUES["code"].startswith(read_arguments(cut).get("code", ""))  # type: ignore[attr-defined]


@STYLES
@pytest.mark.parametrize("depth", [1000, 3000, 100_000])
def test_an_argument_that_is_nested_too_deeply_is_a_text(style: CallStyle, depth: int) -> None:
    nested = "[" * depth + "]" * depth
    text = written(style, ("edit", json.dumps({"at": "@", "code": "c"}))).replace("@", nested)
    at = read_arguments(arguments_of(style, [text])).get("at")
    assert at == nested


@STYLES
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("at", None),
        ("code", None),
        ("at", 5),
        ("lines", ["a"]),
        ("force", "yes"),
        ("mode", "none"),
        ("other", "1"),
        ("tree", {"in": [{"in": [3]}]}),
        ("sizes", {"a": "1"}),
    ],
)
def test_the_grammar_allows_no_value_of_another_type(style: CallStyle, name: str, value: object) -> None:
    guide = guide_of_answer(message_style(style), Thinking.NONE, Calling((EDIT, *TOOLS), "auto"), None)
    values = {key: each for key, each in {**VALUES, name: value}.items() if key == name or each != value}
    if value is None:
        del values[name]
    assert follows(guide, written(style, ("edit", json.dumps(values)))) == ""


def test_choices_of_one_schema_are_found_once_and_long_schemas_refused_first() -> None:
    again: JsonValue = {"$ref": "#/$defs/T"}
    schema: dict[str, JsonValue] = {"$defs": {"T": {"anyOf": [{**again} for _ in range(90)]}}}
    assert schemas.choices_of(again, schema) == [schema["$defs"]["T"]]
    schema["properties"] = {f"a{number}": {**again} for number in range(20_000)}
    function = Function(name="f", parameters=schema)
    assert QWEN_XML.unenforced(function) == []
    with pytest.raises(InvalidRequestError, match="too long"):
        guide_of_answer(message_style(QWEN_XML), Thinking.NONE, Calling((function,), "auto"), None)


def test_values_behind_a_choice_are_named_also_if_another_property_has_them_alone() -> None:
    """Takes what pydantic writes of an Enum beside an Optional one."""
    shared: JsonValue = {"$ref": "#/$defs/E"}
    named: JsonValue = {"a": shared, "b": {"anyOf": [shared, {"type": "null"}]}}
    enum: JsonValue = {"E": {"type": "string", "enum": ["x", "y"]}}
    function = Function(name="f", parameters={"properties": named, "$defs": enum})
    assert QWEN_XML.unenforced(function) == ["enum of b"]


def test_a_schema_that_refers_often_to_a_long_one_is_refused_before_it_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    long: JsonValue = {"anyOf": [{"type": ["array", "string"], "title": str(number)} for number in range(90)]}
    named: JsonValue = {f"a{number}": {"$ref": "#/$defs/T", "title": str(number)} for number in range(4500)}
    function = Function(name="f", parameters={"properties": named, "$defs": {"T": long}})
    seen: list[object] = []
    counted = schemas.own_types
    monkeypatch.setattr(schemas, "own_types", lambda part: seen.append(0) or counted(part))
    assert QWEN_XML.unenforced(function) == []
    assert len(seen) < 1000
    with pytest.raises(InvalidRequestError, match="grammar of the answer is too long"):
        guide_of_answer(message_style(QWEN_XML), Thinking.NONE, Calling((function,), "auto"), None)


def test_warnings_of_a_schema_are_bounded_in_time_and_number() -> None:
    slow = Function(name="f", parameters=slow_to_read_function())
    began_s = time.thread_time()
    found = QWEN_XML.unenforced(slow)
    assert time.thread_time() - began_s < 5 * MOST_READING_S
    assert found[-1].endswith("took too long to read")
    named: JsonValue = {f"a{number}": {"type": "string", "maxLength": 3} for number in range(500)}
    assert len(QWEN_XML.unenforced(Function(name="f", parameters={"properties": named}))) == 100
