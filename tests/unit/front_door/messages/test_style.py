"""Tests of recognising how models write calls and thoughts, from templates after the published ones."""

from __future__ import annotations

import pytest

from pipelines.front_door.messages.style import MessageStyle
from tests.support.chat_templates import ALL, TEMPLATES

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
