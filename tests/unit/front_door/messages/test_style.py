"""Tests of how styles of calls are recognised, and of which functions a request lets a model call."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.errors import InvalidRequestError
from pipelines.front_door.messages.call_styles.json_calls import HERMES
from pipelines.front_door.messages.message import Thinking
from pipelines.front_door.messages.style import MessageStyle
from pipelines.front_door.messages.tools import Calling, Function, calling_of
from tests.support.chat_templates import ALL, TEMPLATES
from tests.unit.front_door.messages.cases import (
    ARGUMENTS,
    CLOCK,
    TOOLS,
    WEATHER,
    guide_of_answer,
    message_style,
    written,
)
from tests.unit.front_door.messages.test_message_grammar import follows

MISTRAL_V3 = (
    TEMPLATES["mistral"] + "{{ '[TOOL_CALLS] [' }}{% for call in tool_calls %}{{ call | tojson }}{% endfor %}"
)
MISTRAL_V11 = TEMPLATES["mistral"] + "{{ '[TOOL_CALLS]' + name + '[CALL_ID]' + id + '[ARGS]' + arguments }}"
GLM = "{{ '<tool_call>' + name + '<arg_key>' }}"


@pytest.mark.parametrize(
    ("source", "name", "can_think"),
    [
        (TEMPLATES["chatml"], "hermes", True),
        (TEMPLATES["llama_3"], "llama3_json", False),
        (MISTRAL_V3, "mistral_list", False),
        (MISTRAL_V11, "mistral_names", False),
        (TEMPLATES["mistral"], None, False),
        (TEMPLATES["phi"], None, False),
        (ALL["tools_qwen_xml"], "qwen3_xml", True),
        (TEMPLATES["chatml"] + "{{ '<parameter=' + name + '>' }}", "qwen3_xml", True),
        (ALL["tools_minicpm"], "minicpm5", True),
        (ALL["tools_harmony"], None, False),  # where its marks are no special tokens
        (GLM, None, False),
    ],
)
def test_styles_are_recognised(source: str, name: str | None, can_think: bool) -> None:
    style = MessageStyle.of(source, {"[TOOL_CALLS]": 5, "</s>": 2, "</tool_call>": 7})
    assert (style.calls.name if style.calls else None, style.thoughts is not None) == (name, can_think)
    known = {
        "mistral_list": {"[TOOL_CALLS]": 5},
        "mistral_names": {"[TOOL_CALLS]": 5},
        "hermes": {"</tool_call>": 7},
        "qwen3_xml": {"</tool_call>": 7},
    }
    assert style.special == known.get(name or "", {})


THIRD = Function(name="third")
FUNCTIONS = (*TOOLS, THIRD)


def nested(*names: str) -> list[Any]:
    return [{"type": "function", "function": {"name": name}} for name in names]


def flat(*names: str) -> list[Any]:
    return [{"type": "function", "name": name} for name in names]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, Calling(FUNCTIONS, "auto")),
        ("none", Calling(FUNCTIONS, "none")),
        ("required", Calling(FUNCTIONS, "required")),
        (nested(CLOCK.name)[0], Calling((CLOCK,), "required", is_parallel=False)),
        (flat(CLOCK.name)[0], Calling((CLOCK,), "required", is_parallel=False)),
    ],
)
def test_a_choice_is_one_of_all_functions_or_names_one(choice: Any, expected: Calling) -> None:
    assert calling_of(FUNCTIONS, choice, None) == expected


@pytest.mark.parametrize("mode", ["auto", "required"])
@pytest.mark.parametrize("is_parallel", [True, False])
def test_some_of_the_functions_are_allowed(mode: Any, is_parallel: bool) -> None:
    allowed = {"mode": mode, "tools": nested("third", WEATHER.name)}
    expected = Calling((WEATHER, THIRD), mode, is_parallel)
    of_chat = {"type": "allowed_tools", "allowed_tools": allowed}
    of_responses = {"type": "allowed_tools", "mode": mode, "tools": flat("third", WEATHER.name)}
    for choice in (of_chat, of_responses):
        assert calling_of(FUNCTIONS, choice, is_parallel) == expected


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_the_grammar_allows_no_call_of_another_function(mode: Any) -> None:
    choice = {"type": "allowed_tools", "mode": mode, "tools": flat(WEATHER.name)}
    guide = guide_of_answer(message_style(HERMES), Thinking.NONE, calling_of(TOOLS, choice, None), None)
    assert follows(guide, written(HERMES, (WEATHER.name, ARGUMENTS))) == "whole"
    assert follows(guide, written(HERMES, (CLOCK.name, "{}"))) == ""
    assert follows(guide, "It is noon.") == ("whole" if mode == "auto" else "")


@pytest.mark.parametrize(
    "choice",
    [
        "maybe",
        {"type": "function"},
        {"type": "function", "function": {"name": "fourth"}},
        {"type": "custom", "name": "third"},
        {"type": "allowed_tools"},
        {"type": "allowed_tools", "allowed_tools": None},
        {"type": "allowed_tools", "mode": "none", "tools": flat("third")},
        {"type": "allowed_tools", "mode": "auto", "tools": []},
        {"type": "allowed_tools", "mode": "auto", "tools": flat("third", "fourth")},
        {"type": "allowed_tools", "mode": "auto", "tools": ["third"]},
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": {"name": "third"}}},
    ],
)
def test_a_choice_that_means_none_of_the_functions_is_refused(choice: Any) -> None:
    for functions in (FUNCTIONS, ()):
        with pytest.raises(InvalidRequestError, match=r"^tool_choice=.* cannot be followed; send "):
            calling_of(functions, choice, None)
