"""Says what a style of tool calls consists of; ``docs/how-to/change-draftproof.md`` shows how to add one."""

from __future__ import annotations

import re
import secrets
import string
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from pipelines.front_door.messages.lark import SPACE, Rules, escaped
from pipelines.front_door.messages.tools import Function

MOST_OPENING = 256
"""Characters; what stands before the arguments of a call, or before a value, is shorter."""

MOST_READING_S = 0.2
"""Time of the processor to find out what of a schema is not enforced."""

_SHORT_ID_SIZE = 9
_SHORT_ID_LETTERS = string.ascii_letters + string.digits


class Arguments(Protocol):
    """Reads the arguments of one call as JSON, as they arrive.

    Attributes:
        is_done: Whether they have ended.
    """

    is_done: bool

    def read(self, text: str) -> tuple[str, str]:
        """Return the next piece of JSON, and the text that is not read yet.

        Args:
            text: What was not read before, and what follows it.
        """


def num_begun(text: str, mark: str) -> int:
    """Return how many characters at the end of a text may become a mark."""
    sizes = range(min(len(mark) - 1, len(text)), 0, -1)
    return next((size for size in sizes if text.endswith(mark[:size])), 0)


@dataclass(frozen=True, kw_only=True)
class CallStyle(ABC):
    """A form in which models write tool calls.

    Attributes:
        name: Name for operators and errors: that of vLLM's parser.
        signs: Regular expressions for what a chat template of the style has.
        foreign: Regular expressions for what it does not have.
        mark: Text or special token that opens calls.
        end: Text behind each call.
        head_end: The last character before the arguments of a call, but for spaces.
        has_json_arguments: Models write arguments as JSON, and templates may render them from a text.
        is_list: Calls stand in one JSON list behind the mark; otherwise each has its own mark.
        is_bare: The answer is one call, and the mark may be left out.
        has_short_ids: Ids of calls have nine letters and digits, as templates of Mistral want them.
        fences: What stands around calls that models write as JSON instead, if that is not the whole answer,
            as Qwen2.5-Coder does.
    """

    name: str
    signs: tuple[str, ...]
    foreign: tuple[str, ...] = ()
    mark: str
    end: str = ""
    head_end: str
    has_json_arguments: bool = True
    is_list: bool = False
    is_bare: bool = False
    has_short_ids: bool = False
    fences: tuple[tuple[str, str], ...] = ()

    def is_used_by(self, template: str) -> bool:
        """Return whether a chat template writes calls in this style."""

        def has(sign: str) -> bool:
            return re.search(sign, template, re.DOTALL) is not None

        return all(map(has, self.signs)) and not any(map(has, self.foreign))

    def new_id(self) -> str:
        """Return a new id of a call."""
        if self.has_short_ids:
            return "".join(secrets.choice(_SHORT_ID_LETTERS) for _ in range(_SHORT_ID_SIZE))
        return f"call_{secrets.token_hex(12)}"

    @property
    def marks(self) -> tuple[str, ...]:
        """The texts of calls that may be special tokens."""
        return self.mark, self.end

    def json_opening(self, names: Iterable[str]) -> list[list[str]]:
        """Return what a call as JSON begins with: one piece of each list, with any spaces between them.

        Args:
            names: Names of functions.
        """
        return []

    @abstractmethod
    def head(self, name: str) -> str:
        """Return a regular expression for what a call has before its arguments.

        Args:
            name: Regular expression for the name of the function.
        """

    @abstractmethod
    def new_arguments(self, function: Function | None) -> Arguments:
        """Return a reader of the arguments of one call.

        Args:
            function: The function; None if it is unknown.
        """

    def add_rules(self, rules: Rules) -> None:  # noqa: B027
        """Add the rules that the calls of all functions share; by default none."""

    def call_rule(self, rules: Rules, number: int, function: Function) -> str:
        """Return the item of a grammar for a call, and add the rules that it needs.

        Args:
            rules: The rules of the grammar.
            number: Of the function.
            function: The function.
        """
        rules.add(f"HEAD_{number}", rf"/{SPACE}{self.head(escaped(function.name))}/")
        arguments = self.arguments_rule(rules, number, function)
        return f"HEAD_{number} {arguments}" + (f" {rules.literal(self.end)}" if self.end else "")

    @abstractmethod
    def arguments_rule(self, rules: Rules, number: int, function: Function) -> str:
        """Return the item for the arguments of a call; arguments are as for ``call_rule``."""

    def unenforced(self, function: Function, limit_s: float = MOST_READING_S) -> list[str]:
        """Return what of a function's schema the grammar leaves out.

        Args:
            function: The function.
            limit_s: Time for it on the processor, in seconds; then the last text says that it was over.
        """
        return []  # what is written as JSON follows its schema
