"""Calls as Gemma 4 writes them: arguments like JSON, with bare keys and quotes of their own."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from pydantic import JsonValue

from pipelines.front_door.messages import schemas
from pipelines.front_door.messages.answer_format import enforceable
from pipelines.front_door.messages.call_styles.call_style import MOST_READING_S, Arguments, CallStyle
from pipelines.front_door.messages.lark import ANY, Rules, escaped, without
from pipelines.front_door.messages.tools import Function, parameters_of

_QUOTE = '<|"|>'
_SPACES, _BARE = re.compile(r"\s*"), re.compile(r"[^{}\[\],:<]*")


@dataclass(frozen=True, kw_only=True)
class GemmaCalls(CallStyle):
    """Calls as ``call:name{key:<|"|>text<|"|>,other:1}``."""

    has_json_arguments: bool = False
    head_end: str = "{"

    @property
    def marks(self) -> tuple[str, ...]:
        """The texts of calls that may be special tokens."""
        return *super().marks, _QUOTE

    def head(self, name: str) -> str:
        """Return a regular expression for what a call has before its arguments, and their brace."""
        return rf"call:{name}\{{"

    def new_arguments(self, function: Function | None) -> Arguments:
        """Return a reader of the arguments of one call."""
        return GemmaArguments()

    def unenforced(self, function: Function, limit_s: float = MOST_READING_S) -> list[str]:
        """Return what of a function's schema the grammar leaves out."""
        return schemas.unenforced(function, limit_s, of_texts_alone=False)

    def add_rules(self, rules: Rules) -> None:
        """Add the rules for texts and any values."""
        plain = enforceable({"type": ["number", "boolean", "null"]}, strict=True)
        rules.add("BARE", without([f"{ANY}{escaped(_QUOTE)}{ANY}"]))
        rules.add("quote", rules.literal(_QUOTE))
        rules.add("text", "quote BARE? quote")
        rules.add("KEY", '/[^{}\\[\\],:<"\\n]{1,64}:/')
        rules.add("pair", "KEY anything")
        rules.add("pairs", '(pair ("," pair)*)? "}"')
        rules.add("anything", f'text | %json {plain} | "{{" pairs | "[" (anything ("," anything)*)? "]"')

    def arguments_rule(self, rules: Rules, number: int, function: Function) -> str:
        """Return the item for the arguments of a call behind their brace."""
        return _ValueRules(rules, number, parameters_of(function)).of_arguments()


class _ValueRules:
    """Writes the rules for the values of one function's arguments.

    Args:
        rules: The rules of the grammar.
        number: Of the function.
        root: The schema of the arguments.
    """

    def __init__(self, rules: Rules, number: int, root: schemas.Schema) -> None:
        self._rules = rules
        self._number = number
        self._root = root
        self._names: dict[str, str] = {}  # of rules, by their schemas
        self._waiting: list[tuple[str, JsonValue]] = []  # rules that are named only

    def of_arguments(self) -> str:
        """Return the item for the arguments."""
        item = self._members(self._root)
        while self._waiting:  # no recursion: references may be long chains
            self._add(*self._waiting.pop())
        return item

    def _named(self, schema: JsonValue) -> str:
        """Return the name of the rule for a value."""
        key = json.dumps(schema)
        if key not in self._names:  # also inside itself
            self._names[key] = f"value_{self._number}_{len(self._names)}"
            self._waiting.append((self._names[key], schema))
        return self._names[key]

    def _add(self, rule: str, schema: JsonValue) -> None:
        """Add the rule for a value."""
        items = []
        for part in schemas.choices_of(schema, self._root):
            kinds, values = schemas.own_types(part), schemas.values_of(part)
            texts = [json.dumps(each, ensure_ascii=False) for each in values if isinstance(each, str)]
            items += [f"quote {text} quote" for text in texts]
            if kinds == schemas.TYPES:
                items, kinds = [*items, "anything"], frozenset()
            if "string" in kinds and not values:
                items.append("text")
            if "array" in kinds:
                each = self._named(part.get("items"))
                items.append(f'"[" ({each} ("," {each})*)? "]"')
            if "object" in kinds:
                items.append(f'"{{" {self._members(part)}')
            if plain := sorted(kinds - {"string", "array", "object"}):
                items.append(f"%json {enforceable({**part, 'type': [*plain]}, strict=False)}")
        self._rules.add(rule, " | ".join(items or ["text"]))

    def _members(self, schema: schemas.Schema) -> str:
        """Return the item for the members of an object behind its brace, in the order of the alphabet."""
        required, properties = schemas.required_of(schema), schemas.properties_of(schema)
        if not properties and (others := schema.get("additionalProperties")) is not False:
            pair = f"KEY {self._named(others)}"
            return f'({pair} ("," {pair})*)? "}}"'
        first = rest = ""
        for name, each in sorted(properties.items(), key=lambda item: item[0].lower(), reverse=True):
            pair = f"{json.dumps(f'{name}:', ensure_ascii=False)} {self._named(each)}"
            rule = f"members_{len(self._rules.lines)}"
            self._rules.add(rule, f'"," {pair} {rest}' + ("" if name in required else f" | {rest}"))
            first, rest = f"{pair} {rest}" + ("" if name in required else f" | {first}"), rule
        return f'({first}) "}}"' if first else '"}"'


class GemmaArguments:
    """Reads an object behind its brace (``Arguments``); texts arrive whole.

    A key ends at the first colon before a value, so it may have colons, commas and brackets itself.
    """

    def __init__(self) -> None:
        self.is_done = False
        self._open: list[str] = []  # braces and brackets
        self._begin = "{"
        self._is_in_object = False  # where a key comes next
        # Places in the text that is not read yet: what was looked at ends, and a colon that may end a key.
        self._seen = self._colon = 0

    def read(self, text: str) -> tuple[str, str]:
        """Return the next piece of JSON, and the text that is not read yet."""
        pieces = []
        text, self._begin, place = self._begin + text, "", 0
        while not self.is_done:
            place = _end_of(_SPACES, text, place)
            if (part := self._part(text, place)) is None:
                break
            kind, found, place = part
            pieces.append(self._json_of(kind, found))
        self._seen, self._colon = max(0, self._seen - place), max(0, self._colon - place)
        return "".join(pieces), text[place:]

    def _part(self, text: str, at: int) -> tuple[str, str, int] | None:
        """Return the kind of the part at a place, the part, and its end; None if it is not whole."""
        if self._is_in_object and not text.startswith("}", at):
            return self._key(text, at)
        if text.startswith(_QUOTE, at):
            begin = at + len(_QUOTE)
            end = text.find(_QUOTE, max(begin, self._seen))
            if end < 0:
                self._seen = len(text) - len(_QUOTE) + 1
                return None
            return "text", text[begin:end], end + len(_QUOTE)
        end = self._end_of_bare(text, at)
        if end > at and text.startswith((",", "}", "]"), end):
            return "bare", text[at:end], end
        if end == at and text.startswith(("{", "}", "[", "]", ","), at):
            return "mark", text[at], at + 1
        return None

    def _key(self, text: str, at: int) -> tuple[str, str, int] | None:
        """Return the key at a place, as ``_part`` does."""
        while (colon := text.find(":", max(at, self._colon))) >= 0:
            self._colon, begin = colon, colon + 1
            end = self._end_of_bare(text, begin)
            behind = text[end : end + len(_QUOTE)]
            if _QUOTE.startswith(behind) and behind != _QUOTE:  # "" at the end of the text
                return None
            is_value = behind[0] in "{[" or behind == _QUOTE
            if not text[begin:end].strip() if is_value else end > begin and behind[0] in ",}]":
                return "key", text[at:colon], begin
            self._colon = end
        self._colon = len(text)
        return None

    def _end_of_bare(self, text: str, at: int) -> int:
        """Return the end of a value without quotes at a place; no character is looked at twice."""
        self._seen = _end_of(_BARE, text, max(at, self._seen))
        return self._seen

    def _json_of(self, kind: str, part: str) -> str:
        if kind == "bare":
            return schemas.json_of(part, schemas.TYPES)
        if kind != "mark":
            self._is_in_object = False
            return json.dumps(part, ensure_ascii=False) + (": " if kind == "key" else "")
        if part in "{[":
            self._open.append(part)
        elif part != ",":
            del self._open[-1:]
        self.is_done = not self._open
        self._is_in_object = part in "{," and self._open[-1] == "{"
        return ", " if part == "," else part


def _end_of(pattern: re.Pattern[str], text: str, place: int) -> int:
    """Return the end of what may be empty at a place of a text."""
    found = pattern.match(text, place)
    assert found is not None
    return found.end()


GEMMA_4 = GemmaCalls(name="gemma4", signs=(r"<\|tool_call>",), mark="<|tool_call>", end="<tool_call|>")
