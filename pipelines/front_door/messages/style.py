"""Recognises in a chat template how its model writes thoughts and tool calls.

Sources: the templates of the models, and the formats that vLLM's tool parsers read, which bear the names used
here (https://docs.vllm.ai/en/latest/features/tool_calling.html).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

THINK_BEGIN, THINK_END = "<think>", "</think>"
_THOUGHTS = ((THINK_BEGIN, THINK_END), ("<|channel>thought", "<channel|>"))  # the latter are Gemma 4's
CALL_ID = "[CALL_ID]"
ARGS = "[ARGS]"

SPACE = r"[ \n\r\t]{0,2}"
"""Spaces between the parts of a call: a line feed or two; models have written many where they could."""

NAME = r"[A-Za-z0-9_.:/-]{1,64}"
"""Names of functions: OpenAI's, and the dots, colons and slashes of MCP servers."""


ARGUMENT_NAME = r"[^<>\"\n]{1,64}"
"""Names of arguments where the schema has none."""

MOST_OPENING = 256
"""Characters; what stands before the arguments of a call, or before a value, is shorter."""


@dataclass(frozen=True)
class Tags:
    """The tags in which a call has its arguments, one each.

    Attributes:
        before_name: What stands before the name of an argument.
        after_name: What stands behind it.
        value_end: What ends a value.
        quotes: What may stand around a value, inside its tags.
        all_end: What ends the arguments.
    """

    before_name: str
    after_name: str
    value_end: str
    quotes: tuple[str, str]
    all_end: str

    def name(self, name: str) -> str:
        """Return a regular expression for the beginning of an argument with a name like this one."""
        return f"{re.escape(self.before_name)}{name}{re.escape(self.after_name)}"


@dataclass(frozen=True)
class CallStyle:
    """A form in which models write tool calls.

    Attributes:
        name: Name for operators and errors.
        mark: Text or special token that opens calls.
        end: Text behind each call.
        arguments: Key of a call's arguments; "" if they stand behind ``ARGS``, and the name before it.
        is_list: Calls stand in one JSON list behind the mark; otherwise each has its own.
        is_bare: The answer is one call, and the mark may be left out.
        is_mistral: Ids of calls have nine letters and digits.
        around_name: What stands before and behind the name of the function, if the call is no JSON.
        tags: The tags of the arguments; None if they have none.
        quote: What stands around texts in arguments like JSON with bare keys; "" if they are none. The first
            brace belongs to ``around_name``.
        fences: What stands around calls that models write as JSON instead, if that is not the whole answer,
            as Qwen2.5-Coder does.
    """

    name: str
    mark: str
    end: str = ""
    arguments: str = "arguments"
    is_list: bool = False
    is_bare: bool = False
    is_mistral: bool = False
    around_name: tuple[str, str] | None = None
    tags: Tags | None = None
    quote: str = ""
    fences: tuple[tuple[str, str], ...] = ()

    @property
    def marks(self) -> tuple[str, ...]:
        """The texts of calls that may be special tokens."""
        return self.mark, self.end, self.quote, *((CALL_ID, ARGS) if not self.arguments else ())

    def bare_opening(self, names: Iterable[str]) -> list[list[str]]:
        """Return what a call as JSON begins with: one piece of each list, with any spaces between them."""
        quoted = [f'"{name}"' for name in names]
        return [["{"], ['"name"'], [":"], quoted, [","], [f'"{self.arguments}"'], [":"]]

    @property
    def head_end(self) -> str:
        """The last character of ``head``, but for spaces."""
        if self.around_name is not None:
            return self.around_name[1][-1]
        return ":" if self.arguments else ARGS[-1]

    def head(self, name: str) -> str:
        """Return a regular expression for what a call has before its arguments.

        Args:
            name: Regular expression for the name of the function.
        """
        if self.around_name is not None:
            return f"{re.escape(self.around_name[0])}{name}{re.escape(self.around_name[1])}"
        if not self.arguments:
            return rf"{name}(?:{re.escape(CALL_ID)}[A-Za-z0-9]{{9}})?{re.escape(ARGS)}"
        before, between = rf'\{{{SPACE}"name"{SPACE}:{SPACE}"', rf'"{SPACE},{SPACE}"{self.arguments}"{SPACE}:'
        return f"{before}{name}{between}{SPACE}"


_FENCES = ("```json", "```"), ("<tools>", "</tools>")
HERMES = CallStyle("hermes", "<tool_call>", end="</tool_call>", fences=_FENCES)
LLAMA_3 = CallStyle("llama3_json", "<|python_tag|>", arguments="parameters", is_bare=True)
MISTRAL_LIST = CallStyle("mistral_list", "[TOOL_CALLS]", is_list=True, is_mistral=True)
MISTRAL_NAMES = CallStyle("mistral_names", "[TOOL_CALLS]", arguments="", is_mistral=True)
QWEN_XML = CallStyle(
    "qwen3_xml",
    "<tool_call>",
    end="</tool_call>",
    around_name=("<function=", ">"),
    tags=Tags("<parameter=", ">", "</parameter>", ("\n", "\n"), "</function>"),
)
MINICPM = CallStyle(
    "minicpm5",
    '<function name="',
    around_name=("", '">'),
    tags=Tags('<param name="', '">', "</param>", ("<![CDATA[", "]]>"), "</function>"),
)
GEMMA_4 = CallStyle("gemma4", "<|tool_call>", end="<tool_call|>", around_name=("call:", "{"), quote='<|"|>')
HARMONY_MARKS = ("<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|constrain|>", "<|call|>")
HARMONY = CallStyle("harmony", "".join(HARMONY_MARKS))
"""Read and write calls as gpt-oss does, whose messages have channels; see ``messages.harmony``."""
_HARMONY_THOUGHTS = ("<|channel|>analysis<|message|>", "<|end|>")

CALL_STYLES = (HERMES, LLAMA_3, MISTRAL_LIST, MISTRAL_NAMES, QWEN_XML, MINICPM, GEMMA_4)

_JSON_CALL = r'\{{\\?"name\\?"\s*:.*\\?"{}\\?"\s*:'  # in a string of the template, perhaps escaped
_OTHER_CALLS = ("<function=", "<arg_key>")  # GLM has the latter


@dataclass(frozen=True)
class MessageStyle:
    """The form in which a model writes messages.

    Attributes:
        calls: Its tool calls; None if its template has none, or none that is known here.
        thoughts: What stands before and behind thoughts, which may come before the answer; None without.
        special: Ids of those marks that are special tokens.
        has_developer: Whether the template knows the role ``developer``.
        takes_objects: Whether it takes the arguments of earlier calls as objects, as transformers recommends,
            or as JSON in a text, as OpenAI's API has them.
    """

    calls: CallStyle | None = None
    thoughts: tuple[str, str] | None = None
    special: Mapping[str, int] = field(default_factory=dict)
    has_developer: bool = False
    takes_objects: bool = True

    @classmethod
    def of(cls, source: str, special_names: Mapping[str, int]) -> MessageStyle:
        """Recognise the style of a model.

        Args:
            source: The chat template for requests with tools.
            special_names: Ids of the special tokens by their names.
        """
        calls = _call_style(source)
        if calls is HARMONY and not special_names.keys() >= {*HARMONY_MARKS}:
            calls = None
        others = next((marks for marks in _THOUGHTS if marks[1] in source), None)
        thoughts = _HARMONY_THOUGHTS if calls is HARMONY else others
        takes_objects = "tojson" in source or (calls is not None and calls.around_name is not None)
        style = cls(calls, thoughts, special_names, "developer" in source, takes_objects)
        return replace(style, special={name: special_names[name] for name in style.special_marks()})

    def special_marks(self, *, with_calls: bool = True) -> list[str]:
        """Return the names of special tokens that the marks of an answer have."""
        of_calls = self.calls if with_calls else None
        marks = "\n".join([*(self.thoughts or ()), *(of_calls.marks if of_calls is not None else ())])
        return [name for name in self.special if name in marks]


class Thinking(Enum):
    """Tells whether an answer begins with thoughts.

    Attributes:
        NONE: The answer has no thoughts: the prompt has closed them, or the model has none.
        POSSIBLE: It may begin with thoughts.
        BEGUN: The prompt has opened them, so it begins inside.
    """

    NONE = "none"
    POSSIBLE = "possible"
    BEGUN = "begun"


def _call_style(source: str) -> CallStyle | None:
    if all(mark in source for mark in ("<|channel|>", "functions.", "<|call|>")):
        return HARMONY
    if MISTRAL_LIST.mark in source:
        return MISTRAL_NAMES if ARGS in source else MISTRAL_LIST
    for style in (QWEN_XML, MINICPM, GEMMA_4):
        if style.mark in source and (style.tags is None or style.tags.before_name in source):
            return style
    if HERMES.mark in source:
        is_json = _writes(source, HERMES) and not any(mark in source for mark in _OTHER_CALLS)
        return HERMES if is_json else None
    return LLAMA_3 if "tool_calls" in source and _writes(source, LLAMA_3) else None


def _writes(source: str, style: CallStyle) -> bool:
    """Return whether a template writes calls as JSON with the keys of a style."""
    return re.search(_JSON_CALL.format(style.arguments), source, re.DOTALL) is not None
