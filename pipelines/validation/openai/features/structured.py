"""Ask for JSON that follows a schema, and check it with pydantic, which no server's grammar has a part in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipelines.validation.openai.features.feature import (
    WITHOUT_THOUGHTS,
    Feature,
    Material,
    chat_question,
)
from pipelines.validation.openai.server.answers import Answer
from pipelines.validation.openai.server.questions import Question

_ENOUGH_TOKENS = 128  # for the longest answer of these forms, in compact JSON, with any tokenizer but bytes
_NAME = "structured output"


class Setting(BaseModel):
    """A part of a description."""

    model_config = ConfigDict(extra="forbid", strict=True)

    place: Literal["indoors", "outdoors", "both"]
    is_historic: bool


class Description(BaseModel):
    """The form of an answer: every value is one of few, so that the answer ends."""

    model_config = ConfigDict(extra="forbid", strict=True)

    subject: Literal["animal", "building", "idea", "object", "person", "program"]
    setting: Setting
    moods: Annotated[list[Literal["calm", "eager", "sad", "serious"]], Field(min_length=1, max_length=3)]
    difficulty: Literal[1, 2, 3, 4, 5]


def schema_of(form: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON schema of a form without titles and descriptions, which prompts would contain."""

    def bare(schema: Any) -> Any:
        if isinstance(schema, dict):
            return {key: bare(each) for key, each in schema.items() if key not in ("title", "description")}
        return schema

    document: dict[str, Any] = bare(form.model_json_schema())
    return document


_INSTRUCTION = "Describe this text in JSON, with the keys subject, setting, moods and difficulty."
_FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "description", "schema": schema_of(Description), "strict": True},
}


def _ask_in_chat(more: Mapping[str, Any], material: Material, number: int) -> Question | None:
    if not material.chat:
        return None
    tokens = max(material.max_tokens, _ENOUGH_TOKENS)
    return chat_question(_NAME, material, number, _INSTRUCTION, tokens, response_format=_FORMAT, **more)


def _ask_in_completions(material: Material, number: int) -> Question | None:
    """Ask where no conversation is possible; vLLM, SGLang and Draftproof take the field there too."""
    if not material.completions:
        return None
    prompt = material.named(number, _NAME, f"{material.text(number)}\n\n{_INSTRUCTION}\n")
    return Question(prompt, max(material.max_tokens, _ENOUGH_TOKENS), _NAME, {"response_format": _FORMAT})


def _fault(question: Question, answer: Answer) -> str:
    text = answer.text.strip()
    if answer.finish_reason == "length":
        return "" if text[:1] in ("", "{") else "the answer is no JSON object"
    try:
        Description.model_validate(json.loads(text))
    except (ValueError, ValidationError, RecursionError) as error:
        return f"the answer does not follow its schema: {str(error).splitlines()[0]}"
    return ""


_WAYS = (partial(_ask_in_chat, WITHOUT_THOUGHTS), partial(_ask_in_chat, {}), _ask_in_completions)
STRUCTURED = Feature(_NAME, _WAYS, _fault)
