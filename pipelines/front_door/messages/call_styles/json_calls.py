"""Calls whose arguments are JSON: Hermes and Qwen, Llama 3, Mistral."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from pipelines.front_door.messages.call_styles.call_style import Arguments, CallStyle
from pipelines.front_door.messages.lark import SPACE, Rules
from pipelines.front_door.messages.tools import Function, schema_of

_CALL_ID, _ARGS = "[CALL_ID]", "[ARGS]"


class JsonArguments:
    """Reads a JSON object (``Arguments``)."""

    def __init__(self) -> None:
        self.is_done = False
        self._depth = 0  # of braces
        self._is_quoted = self._is_escaped = False

    def read(self, text: str) -> tuple[str, str]:
        """Return the next piece of JSON, and the text that is not read yet."""
        if not self._depth:
            text = text[len(text.partition("{")[0]) :]
        for place, character in enumerate(text):
            if self._is_escaped:
                self._is_escaped = False
            elif self._is_quoted:
                self._is_escaped = character == "\\"
                self._is_quoted = character != '"'
            elif character == '"':
                self._is_quoted = True
            elif character in "{}":
                self._depth += 1 if character == "{" else -1
                if not self._depth:
                    self.is_done = True
                    return text[: place + 1], text[place + 1 :]
        return text, ""


@dataclass(frozen=True, kw_only=True)
class JsonCalls(CallStyle):
    """Calls as JSON objects.

    Attributes:
        key: Key of a call's arguments.
    """

    head_end: str = ":"
    key: str = "arguments"

    def json_opening(self, names: Iterable[str]) -> list[list[str]]:
        """Return what a call begins with."""
        quoted = [f'"{name}"' for name in names]
        return [["{"], ['"name"'], [":"], quoted, [","], [f'"{self.key}"'], [":"]]

    def head(self, name: str) -> str:
        """Return a regular expression for what a call has before its arguments."""
        before, between = rf'\{{{SPACE}"name"{SPACE}:{SPACE}"', rf'"{SPACE},{SPACE}"{self.key}"{SPACE}:'
        return f"{before}{name}{between}{SPACE}"

    def new_arguments(self, function: Function | None) -> Arguments:
        """Return a reader of the arguments of one call."""
        return JsonArguments()

    def arguments_rule(self, rules: Rules, number: int, function: Function) -> str:
        """Return the item for the arguments of a call, and the brace that ends the call."""
        return rf"%json {schema_of(function)} /{SPACE}\}}/"


@dataclass(frozen=True, kw_only=True)
class NamedCalls(CallStyle):
    """Calls as the name of the function, an id that may be left out, and the arguments."""

    head_end: str = _ARGS[-1]

    @property
    def marks(self) -> tuple[str, ...]:
        """The texts of calls that may be special tokens."""
        return *super().marks, _CALL_ID, _ARGS

    def head(self, name: str) -> str:
        """Return a regular expression for what a call has before its arguments."""
        return rf"{name}(?:\[CALL_ID\][A-Za-z0-9]{{9}})?\[ARGS\]"

    def new_arguments(self, function: Function | None) -> Arguments:
        """Return a reader of the arguments of one call."""
        return JsonArguments()

    def call_rule(self, rules: Rules, number: int, function: Function) -> str:
        """Return the item for a call, whose marks may be special tokens."""
        call_id = f"({rules.literal(_CALL_ID)} /[A-Za-z0-9]{{9}}/)?"
        arguments = self.arguments_rule(rules, number, function)
        return f"{json.dumps(function.name)} {call_id} {rules.literal(_ARGS)} {arguments}"

    def arguments_rule(self, rules: Rules, number: int, function: Function) -> str:
        """Return the item for the arguments of a call."""
        return f"%json {schema_of(function)}"


def _written_with(key: str) -> str:
    """Return the sign of a template that writes calls as JSON, in a string, perhaps escaped."""
    return rf'\{{\\?"name\\?"\s*:.*\\?"{key}\\?"\s*:'


HERMES = JsonCalls(
    name="hermes",
    signs=("<tool_call>", _written_with("arguments")),
    foreign=("<function=", "<arg_key>"),  # GLM has the latter
    mark="<tool_call>",
    end="</tool_call>",
    fences=(("```json", "```"), ("<tools>", "</tools>")),
)
LLAMA_3 = JsonCalls(
    name="llama3_json",
    signs=("tool_calls", _written_with("parameters")),
    foreign=("<tool_call>",),
    mark="<|python_tag|>",
    key="parameters",
    is_bare=True,
)
MISTRAL_LIST = JsonCalls(
    name="mistral_list", signs=(r"\[TOOL_CALLS\]",), mark="[TOOL_CALLS]", is_list=True, has_short_ids=True
)
MISTRAL_NAMES = NamedCalls(
    name="mistral_names", signs=(r"\[TOOL_CALLS\]", r"\[ARGS\]"), mark="[TOOL_CALLS]", has_short_ids=True
)
