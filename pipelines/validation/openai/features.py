"""Defines a feature of requests: the questions that use it, and how their answers can be wrong.

A stop word is a part of the control's own answer, so that the answer is known to contain it. It has two to
seven characters, so it begins and ends anywhere in tokens and, in a stream, between chunks.

A call that must come has arguments of the right form; pydantic checks them. Of one that the model may make,
only equality with the control's can be asked.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipelines.command_line.prompt_files import json_of_messages, last_content
from pipelines.command_line.prompts import Prompt
from pipelines.validation.openai.server.answers import Answer
from pipelines.validation.openai.server.server import Question


@dataclass(frozen=True)
class Material:
    """Prompts and answers of which questions are made.

    Attributes:
        prompts: Prompts of the comparison.
        answers: Plain greedy answer of the control to each of them; None where it has none.
        max_tokens: Most tokens of a plain answer.
        chat: Whether the control answers conversations.
        completions: Whether it continues texts.
        longest: Most characters of a prompt.
    """

    prompts: Sequence[Prompt]
    answers: Sequence[Answer | None]
    max_tokens: int
    chat: bool
    completions: bool
    longest: float = math.inf

    def text(self, number: int) -> str:
        """Return a prompt's text, or the last message of a conversation."""
        prompt = self.prompts[number]
        return last_content(prompt.messages) if prompt.messages else prompt.text

    def named(self, number: int, feature: str, text: str) -> Prompt:
        """Return a text as the prompt of a question about a feature."""
        return Prompt(f"{self.prompts[number].prompt_id}, {feature}", text)


Way = Callable[[Material, int], Question | None]
"""(material, number of a prompt) -> a question; None if that prompt gives none."""


@dataclass(frozen=True)
class Feature:
    """A feature of requests.

    Attributes:
        name: Name in reports.
        ways: Ways to ask for it; the first that the control follows is taken.
        fault: Returns what is wrong with an answer, whatever another server says; "" if it keeps the rules.
        tokens_may_go_on: Whether an answer may have tokens behind the end of its text.
    """

    name: str
    ways: tuple[Way, ...]
    fault: Callable[[Question, Answer], str]
    tokens_may_go_on: bool = False


WITHOUT_THOUGHTS: Mapping[str, Any] = {"chat_template_kwargs": {"enable_thinking": False}}
"""Fields that many chat templates know; long thoughts would leave no tokens for the answer."""


def chat_question(
    feature: str, material: Material, number: int, instruction: str, max_tokens: int, **fields: Any
) -> Question:
    """Ask in a conversation for something about the text of a prompt."""
    content = f"{instruction}\n\n{material.text(number)}"
    messages = json_of_messages([{"role": "user", "content": content}])
    prompt = Prompt(f"{material.prompts[number].prompt_id}, {feature}", "", messages=messages)
    return Question(prompt, max_tokens, feature, fields)


_STOP = "stop words"
_SHORTEST, _NUM_LENGTHS = 2, 6
_UNKNOWN = "\ufffd"  # stands for a part of a character


def _with_stop_word(material: Material, number: int) -> Question | None:
    prompt, answer = material.prompts[number], material.answers[number]
    word = _word(answer.text, _SHORTEST + number % _NUM_LENGTHS) if answer else ""
    if not word:
        return None
    named = replace(prompt, prompt_id=f"{prompt.prompt_id}, {_STOP}")
    return Question(named, material.max_tokens, _STOP, {"stop": [word]})


def _word(text: str, length: int) -> str:
    """Return so many characters from the second half of a text; "" if there are none that can be used."""
    for start in range(len(text) // 2, len(text) - length):
        word = text[start : start + length]
        if _UNKNOWN not in word and word == word.strip() and not text.startswith(word):
            return word
    return ""


def _has_stop_word(question: Question, answer: Answer) -> str:
    (word,) = question.fields["stop"]
    return f"the answer contains its stop word {word!r}" if word in answer.text else ""


STOP_WORDS = Feature(_STOP, (_with_stop_word,), _has_stop_word, tokens_may_go_on=True)


_JSON_TOKENS = 128  # for the longest answer of these forms, in compact JSON, with any tokenizer but bytes
_JSON = "structured output"


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


_ASK_FOR_JSON = "Describe this text in JSON, with the keys subject, setting, moods and difficulty."
_FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "description", "schema": schema_of(Description), "strict": True},
}


def _json_in_chat(more: Mapping[str, Any], material: Material, number: int) -> Question | None:
    if not material.chat:
        return None
    tokens = max(material.max_tokens, _JSON_TOKENS)
    return chat_question(_JSON, material, number, _ASK_FOR_JSON, tokens, response_format=_FORMAT, **more)


def _json_in_completions(material: Material, number: int) -> Question | None:
    """Ask where no conversation is possible; vLLM, SGLang and Draftproof take the field there too."""
    if not material.completions:
        return None
    prompt = material.named(number, _JSON, f"{material.text(number)}\n\n{_ASK_FOR_JSON}\n")
    return Question(prompt, max(material.max_tokens, _JSON_TOKENS), _JSON, {"response_format": _FORMAT})


def _breaks_schema(question: Question, answer: Answer) -> str:
    text = answer.text.strip()
    if answer.finish_reason == "length":
        return "" if text[:1] in ("", "{") else "the answer is not a JSON object"
    try:
        Description.model_validate(json.loads(text))
    except (ValueError, ValidationError, RecursionError) as error:
        return f"the answer does not follow its schema: {str(error).splitlines()[0]}"
    return ""


_JSON_WAYS = (partial(_json_in_chat, WITHOUT_THOUGHTS), partial(_json_in_chat, {}), _json_in_completions)
STRUCTURED = Feature(_JSON, _JSON_WAYS, _breaks_schema)


_CALL_TOKENS = 96  # for the longest call of these forms
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
_ASK_FOR_CALL = "Call the function that fits this text."


def _with_tools(feature: str, fields: Mapping[str, Any], material: Material, number: int) -> Question | None:
    if not material.chat:
        return None
    tokens = max(material.max_tokens, _CALL_TOKENS)
    return chat_question(
        feature, material, number, _ASK_FOR_CALL, tokens, tools=_TOOLS, parallel_tool_calls=False, **fields
    )


def _wrong_call(question: Question, answer: Answer) -> str:
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


def _tool_ways(feature: str, *choices: Any) -> tuple[Way, ...]:
    return tuple(
        partial(_with_tools, feature, {"tool_choice": choice, **thoughts})
        for choice in choices
        for thoughts in (WITHOUT_THOUGHTS, {})
    )


_NAMED = {"type": "function", "function": {"name": "file_text"}}
REQUIRED_CALLS = Feature(_REQUIRED, _tool_ways(_REQUIRED, "required", _NAMED), _wrong_call)
OFFERED_TOOLS = Feature(_OFFERED, _tool_ways(_OFFERED, "auto"), lambda question, answer: "")


_LONG = "long prompts"
_CHARACTERS = (16_000, 8_000, 4_000, 2_000, 1_000, 500)  # characters
_SHARE_OF_LONGEST = 0.75  # of the longest one, which is tried: others of its length may have more tokens


def _long_prompt(size: int, material: Material, number: int) -> Question | None:
    """Return a prompt that begins differently from all others and ends with one of the comparison's."""
    if size > max(material.longest, _CHARACTERS[-1]):
        return None
    length = size if number == 0 else int(size * _SHARE_OF_LONGEST)
    parts = [material.text(number)]
    while sum(map(len, parts)) < length:
        parts.insert(0, material.text((number - len(parts)) % len(material.prompts)))
    prompt = material.named(number, _LONG, "\n\n".join(parts)[-length:])
    return Question(prompt, material.max_tokens, _LONG)


LONG_PROMPTS = Feature(
    _LONG, tuple(partial(_long_prompt, size) for size in _CHARACTERS), lambda question, answer: ""
)
