"""Defines the kinds of questions: what each asks, and how its answers can be wrong whatever a control says.

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
from pipelines.errors import DraftproofError, VerificationError
from pipelines.validation.openai.server.abilities import Abilities
from pipelines.validation.openai.server.answers import Answer
from pipelines.validation.openai.server.server import Question

PLAIN = "plain answers"
SAMPLED = "sampled answers"


@dataclass(frozen=True)
class Material:
    """What questions are made of.

    Attributes:
        prompts: Some prompts of the comparison.
        answers: Number of a prompt -> plain greedy answer of the control, as far as there are any.
        max_tokens: Most tokens of a plain answer.
        able: What the control can do.
        longest: Most characters of a prompt.
    """

    prompts: Sequence[Prompt]
    answers: Mapping[int, Answer]
    max_tokens: int
    able: Abilities
    longest: float = math.inf

    def text(self, number: int) -> str:
        """Return a prompt's text, or the last message of a conversation."""
        prompt = self.prompts[number]
        return last_content(prompt.messages) if prompt.messages else prompt.text

    def named(self, number: int, kind: str, **changes: Any) -> Prompt:
        """Return a prompt under the name of a question of some kind, perhaps with another text."""
        prompt = self.prompts[number]
        return replace(prompt, prompt_id=f"{prompt.prompt_id}, {kind}", **changes)

    def question(self, number: int, kind: str, **fields: Any) -> Question:
        """Ask a prompt as it is, with some fields."""
        return Question(self.named(number, kind), self.max_tokens, kind, fields)

    def conversation(
        self, number: int, kind: str, system: Sequence[str], instruction: str, tokens: int, **fields: Any
    ) -> Question | None:
        """Ask in a conversation for something about the text of a prompt; None if there are none."""
        if not self.able.chat:
            return None
        content = f"{instruction}\n\n{self.text(number)}"
        said = [{"role": "system", "content": each} for each in system]
        messages = json_of_messages([*said, {"role": "user", "content": content}])
        tokens = max(self.max_tokens, tokens)
        return Question(self.named(number, kind, text="", messages=messages), tokens, kind, fields)


Way = Callable[[Material, int], Question | None]
"""(material, number of a prompt) -> a question; None if that prompt gives none."""


def _keeps_all_rules(question: Question, answer: Answer) -> str:
    return ""


@dataclass(frozen=True)
class Kind:
    """A kind of questions.

    Attributes:
        name: What differs in reports: "2 of 9 <name>".
        ways: Ways to ask; the first that the control follows is taken.
        fault: Returns what is wrong with an answer, whatever another server says; "" if it keeps the rules.
        tokens_may_go_on: Whether an answer may have tokens behind the end of its text.
    """

    name: str
    ways: tuple[Way, ...]
    fault: Callable[[Question, Answer], str] = _keeps_all_rules
    tokens_may_go_on: bool = False


_WITHOUT_THOUGHTS: Mapping[str, Any] = {"chat_template_kwargs": {"enable_thinking": False}}
"""Fields that many chat templates know; long thoughts would leave no tokens for the answer."""


def _with_and_without_thoughts(way: Callable[..., Question | None], *given: Any) -> tuple[Way, ...]:
    return tuple(partial(way, *given, thoughts) for thoughts in (_WITHOUT_THOUGHTS, {}))


_STOP = "answers with a stop word"
_SHORTEST, _NUM_LENGTHS = 2, 6
_UNKNOWN = "\ufffd"  # stands for a part of a character


def _with_stop_word(material: Material, number: int) -> Question | None:
    answer = material.answers.get(number)
    word = _word(answer.text, _SHORTEST + number % _NUM_LENGTHS) if answer else ""
    return material.question(number, _STOP, stop=[word]) if word else None


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


_JSON = "JSON answers"
_JSON_TOKENS = 64  # for the longest answer of these forms, in compact JSON, with any tokenizer but bytes


class Description(BaseModel):
    """The form of an answer: every value is one of few, so that the answer ends."""

    model_config = ConfigDict(extra="forbid", strict=True)

    subject: Literal["animal", "building", "idea", "object", "person", "program"]
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


_ASK_FOR_JSON = "Describe this text in JSON, with the keys subject, moods and difficulty."
_FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "description", "schema": schema_of(Description), "strict": True},
}


def _json_in_chat(more: Mapping[str, Any], material: Material, number: int) -> Question | None:
    fields = {"response_format": _FORMAT, **more}
    return material.conversation(number, _JSON, (), _ASK_FOR_JSON, _JSON_TOKENS, **fields)


def _json_in_completions(material: Material, number: int) -> Question | None:
    """Ask where no conversation is possible; vLLM, SGLang and Draftproof take the field there too."""
    if not material.able.completions:
        return None
    prompt = material.named(number, _JSON, text=f"{material.text(number)}\n\n{_ASK_FOR_JSON}\n", messages="")
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


_CALL_TOKENS = 64  # for the longest call of these forms
_REQUIRED, _OFFERED, _TWO = "required tool calls", "optional tool calls", "pairs of tool calls"


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
_ASK_FOR_CALLS = "Call both functions, file_text and ask_person, for this text, in one answer."


def _with_tools(
    kind: str, choice: Any, more: Mapping[str, Any], given: Material, number: int
) -> Question | None:
    is_two = kind == _TWO
    instruction, tokens = (_ASK_FOR_CALLS, 2 * _CALL_TOKENS) if is_two else (_ASK_FOR_CALL, _CALL_TOKENS)
    fields = {"tools": _TOOLS, "parallel_tool_calls": is_two, "tool_choice": choice, **more}
    return given.conversation(number, kind, (), instruction, tokens, **fields)


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


def _wrong_pair(question: Question, answer: Answer) -> str:
    if answer.finish_reason != "length" and len(answer.tool_calls) < len(_FORMS):
        return f"the answer has {len(answer.tool_calls)} calls, and both were asked for"
    return _wrong_call(question, answer)


_NAMED = {"type": "function", "function": {"name": "file_text"}}


_LONG = "answers to long prompts"
_CHARACTERS = (16_000, 8_000, 4_000, 2_000, 1_000, 500)  # characters


def _long_prompt(size: int, material: Material, number: int) -> Question | None:
    """Return a prompt that begins differently from all others and ends with one of the comparison's."""
    if size > max(material.longest, _CHARACTERS[-1]):
        return None
    parts = [material.text(number)]
    while sum(map(len, parts)) < size:
        parts.insert(0, material.text((number - len(parts)) % len(material.prompts)))
    prompt = material.named(number, _LONG, text="\n\n".join(parts)[-size:], messages="")
    return Question(prompt, material.max_tokens, _LONG)


_SYSTEM = "answers to two system messages"
_RULES = "You describe texts in one sentence.", "Begin your answer with the word {word}."
_WORDS = "Apples", "Bears", "Clouds", "Doves", "Elms", "Ferns", "Geese"


def _two_system_messages(material: Material, number: int) -> Question | None:
    rules = [rule.format(word=_WORDS[number % len(_WORDS)]) for rule in _RULES]
    return material.conversation(number, _SYSTEM, rules, "Describe this text.", material.max_tokens)


_CHOICES = "pairs of choices (n=2)"
_GREEDY_SAMPLE = {"temperature": 1.0, "top_k": 1}  # vLLM refuses n=2 at temperature 0


def _two_choices(more: Mapping[str, Any], material: Material, number: int) -> Question:
    return material.question(number, _CHOICES, n=2, **more)


_LOG_PROBS, _PROMPT_LOG_PROBS = "log probabilities", "log probabilities of prompts"


def _with_log_probs(material: Material, number: int) -> Question | None:
    if not material.able.log_probs:
        return None
    return replace(material.question(number, _LOG_PROBS), log_probs="both")


def _with_prompt_log_probs(material: Material, number: int) -> Question | None:
    if not (material.able.echo and material.able.log_probs) or material.prompts[number].messages:
        return None
    asked = material.question(number, _PROMPT_LOG_PROBS, echo=True)
    return replace(asked, max_tokens=1, log_probs="both")


_LEAST_SAMPLED = 16  # characters of a greedy answer; a sample may well equal a shorter one


def _sampled(material: Material, number: int) -> Question | None:
    answer = material.answers.get(number)
    if answer is None or len(answer.text) < _LEAST_SAMPLED:
        return None
    asked = material.question(number, SAMPLED, temperature=1.0, top_p=1.0)
    return replace(asked, log_probs="none", greedy=answer.text)


def _tool_ways(kind: str, *choices: Any) -> tuple[Way, ...]:
    return tuple(way for each in choices for way in _with_and_without_thoughts(_with_tools, kind, each))


KINDS = {
    kind.name: kind
    for kind in (
        Kind(_REQUIRED, _tool_ways(_REQUIRED, "required", _NAMED), _wrong_call),
        Kind(_STOP, (_with_stop_word,), _has_stop_word, tokens_may_go_on=True),
        Kind(_JSON, (*_with_and_without_thoughts(_json_in_chat), _json_in_completions), _breaks_schema),
        Kind(_LOG_PROBS, (_with_log_probs,)),
        Kind(SAMPLED, (_sampled,)),
        Kind(_OFFERED, _tool_ways(_OFFERED, "auto")),
        Kind(_TWO, _tool_ways(_TWO, "required", "auto"), _wrong_pair),
        Kind(_SYSTEM, (_two_system_messages,)),
        Kind(_CHOICES, (partial(_two_choices, {}), partial(_two_choices, _GREEDY_SAMPLE))),
        Kind(_PROMPT_LOG_PROBS, (_with_prompt_log_probs,)),
        Kind(_LONG, tuple(partial(_long_prompt, size) for size in _CHARACTERS)),
    )
}
"""All kinds but plain answers, the ones that are likeliest to tell first."""


def checked(question: Question, answer: Answer | DraftproofError) -> Answer | DraftproofError:
    """Return an answer, or an error in place of one that breaks the rules of its kind."""
    if isinstance(answer, DraftproofError) or question.kind == PLAIN:
        return answer
    fault = KINDS[question.kind].fault(question, answer)
    return VerificationError(f"{fault}: {question.prompt.prompt_id}") if fault else answer
