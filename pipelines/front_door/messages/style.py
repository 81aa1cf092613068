"""Recognises in a chat template how its model writes thoughts and tool calls.

Sources: the templates of the models, and the formats that vLLM's tool parsers read, which bear the names used
here (https://docs.vllm.ai/en/latest/features/tool_calling.html).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

THINK_BEGIN, THINK_END = "<think>", "</think>"
CALL_ID = "[CALL_ID]"
ARGS = "[ARGS]"

SPACE = r"[ \n\r\t]{0,2}"
"""Spaces between the parts of a call: a line feed or two; models have written many where they could."""

NAME = r"[A-Za-z0-9_.:/-]{1,64}"
"""Names of functions: OpenAI's, and the dots, colons and slashes of MCP servers."""


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
    """

    name: str
    mark: str
    end: str = ""
    arguments: str = "arguments"
    is_list: bool = False
    is_bare: bool = False
    is_mistral: bool = False

    def openings(self, names: Iterable[str]) -> list[list[str]]:
        """Return what an answer begins with that is a call, in pieces between which spaces may stand."""
        bare = [["{", '"name"', ":", f'"{name}"', ",", f'"{self.arguments}"', ":"] for name in names]
        return [[self.mark], *(bare if self.is_bare else [])]

    def head(self, name: str) -> str:
        """Return a regular expression for what a call has before its arguments.

        Args:
            name: Regular expression for the name of the function.
        """
        if not self.arguments:
            return rf"{name}(?:{re.escape(CALL_ID)}[A-Za-z0-9]{{9}})?{re.escape(ARGS)}"
        before, between = rf'\{{{SPACE}"name"{SPACE}:{SPACE}"', rf'"{SPACE},{SPACE}"{self.arguments}"{SPACE}:'
        return f"{before}{name}{between}{SPACE}"


HERMES = CallStyle("hermes", "<tool_call>", end="</tool_call>")
LLAMA_3 = CallStyle("llama3_json", "<|python_tag|>", arguments="parameters", is_bare=True)
MISTRAL_LIST = CallStyle("mistral_list", "[TOOL_CALLS]", is_list=True, is_mistral=True)
MISTRAL_NAMES = CallStyle("mistral_names", "[TOOL_CALLS]", arguments="", is_mistral=True)

CALL_STYLES = (HERMES, LLAMA_3, MISTRAL_LIST, MISTRAL_NAMES)

_JSON_CALL = r'\{{\\?"name\\?"\s*:.*\\?"{}\\?"\s*:'  # in a string of the template, perhaps escaped
_OTHER_CALLS = ("<function=", "<arg_key>")  # Qwen3-Coder and GLM: parameters in XML


@dataclass(frozen=True)
class MessageStyle:
    """The form in which a model writes messages.

    Attributes:
        calls: Its tool calls; None if its template has none, or none that is known here.
        can_think: Whether it may write thoughts before the answer.
        special: Ids of those marks that are special tokens.
        has_developer: Whether the template knows the role ``developer``.
        takes_objects: Whether it takes the arguments of earlier calls as objects, as transformers recommends,
            or as JSON in a text, as OpenAI's API has them.
    """

    calls: CallStyle | None = None
    can_think: bool = False
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
        marks = {THINK_BEGIN, THINK_END, CALL_ID, ARGS, *([calls.mark, calls.end] if calls else [])}
        special = {name: token_id for name, token_id in special_names.items() if name in marks}
        return cls(calls, THINK_END in source, special, "developer" in source, "tojson" in source)


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
    if MISTRAL_LIST.mark in source:
        return MISTRAL_NAMES if ARGS in source else MISTRAL_LIST
    if HERMES.mark in source:
        is_json = _writes(source, HERMES) and not any(mark in source for mark in _OTHER_CALLS)
        return HERMES if is_json else None
    return LLAMA_3 if "tool_calls" in source and _writes(source, LLAMA_3) else None


def _writes(source: str, style: CallStyle) -> bool:
    """Return whether a template writes calls as JSON with the keys of a style."""
    return re.search(_JSON_CALL.format(style.arguments), source, re.DOTALL) is not None
