"""Ask for calls of tools: some that must come, and some that the model may make.

A call that must come has arguments of the right form; pydantic checks them. Of one that the model may make,
only equality with the control's can be asked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from pipelines.validation.openai.features.feature import (
    WITHOUT_THOUGHTS,
    Feature,
    Material,
    Way,
    chat_question,
)
from pipelines.validation.openai.features.structured import schema_of
from pipelines.validation.openai.server.answers import Answer
from pipelines.validation.openai.server.questions import Question

_ENOUGH_TOKENS = 96  # for the longest call of these forms
_REQUIRED, _OFFERED = "required tool calls", "offered tools"


class FileText(BaseModel):
    """Arguments of ``file_text``."""

    model_config = ConfigDict(extra="forbid", strict=True)

    folder: Literal["code", "letters", "other"]


class AskPerson(BaseModel):
    """Arguments of ``ask_person``."""

    model_config = ConfigDict(extra="forbid", strict=True)

    person: Literal["author", "reader"]


_FORMS: Mapping[str, type[BaseModel]] = {"file_text": FileText, "ask_person": AskPerson}
_TOOLS = [
    {"type": "function", "function": {"name": name, "strict": True, "parameters": schema_of(form)}}
    for name, form in _FORMS.items()
]
_INSTRUCTION = "Call the function that fits this text."


def _ask(feature: str, fields: Mapping[str, Any], material: Material, number: int) -> Question | None:
    if not material.chat:
        return None
    tokens = max(material.max_tokens, _ENOUGH_TOKENS)
    return chat_question(
        feature, material, number, _INSTRUCTION, tokens, tools=_TOOLS, parallel_tool_calls=False, **fields
    )


def _fault(question: Question, answer: Answer) -> str:
    if answer.finish_reason == "length":
        return "the answer has a text and no call" if answer.text.strip() and not answer.tool_calls else ""
    if not answer.tool_calls:
        return "the answer has no call"
    for call in answer.tool_calls:
        if call.name not in _FORMS:
            return f"the answer calls {call.name!r}, which was not offered"
        try:
            _FORMS[call.name].model_validate(json.loads(call.arguments))
        except (ValueError, ValidationError, RecursionError) as error:
            return f"the arguments of a call do not follow their schema: {str(error).splitlines()[0]}"
    return ""


def _ways(feature: str, *choices: Any) -> tuple[Way, ...]:
    return tuple(
        partial(_ask, feature, {"tool_choice": choice, **thoughts})
        for choice in choices
        for thoughts in (WITHOUT_THOUGHTS, {})
    )


_NAMED = {"type": "function", "function": {"name": "file_text"}}
REQUIRED_CALLS = Feature(_REQUIRED, _ways(_REQUIRED, "required", _NAMED), _fault)
OFFERED_TOOLS = Feature(_OFFERED, _ways(_OFFERED, "auto"), lambda question, answer: "")
