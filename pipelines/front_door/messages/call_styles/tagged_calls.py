"""Calls with a tag for each argument: Qwen3-Coder and MiniCPM5. Their texts are not quoted as JSON's are."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from pydantic import JsonValue

from pipelines.front_door.messages import schemas
from pipelines.front_door.messages.answer_format import enforceable
from pipelines.front_door.messages.call_styles.call_style import (
    MOST_OPENING,
    MOST_READING_S,
    Arguments,
    CallStyle,
    num_begun,
)
from pipelines.front_door.messages.lark import ANY, SPACE, Rules, escaped, without
from pipelines.front_door.messages.tools import Function, parameters_of

_ARGUMENT_NAME = r"[^<>\"\n]{1,64}"
"""Names of arguments where the schema has none."""


@dataclass(frozen=True, kw_only=True)
class TaggedCalls(CallStyle):
    """Calls with a tag for each argument.

    Attributes:
        around_function: What stands before and behind the name of the function.
        around_argument: What stands before and behind the name of an argument.
        value_end: What ends a value.
        quotes: What may stand around a value, inside its tags.
        all_end: What ends the arguments.
    """

    has_json_arguments: bool = False
    head_end: str = ">"
    around_function: tuple[str, str]
    around_argument: tuple[str, str]
    value_end: str
    quotes: tuple[str, str]
    all_end: str

    def head(self, name: str) -> str:
        """Return a regular expression for what a call has before its arguments."""
        before, behind = map(re.escape, self.around_function)
        return f"{before}{name}{behind}"

    def argument(self, name: str) -> str:
        """Return a regular expression for the beginning of an argument with a name like this one."""
        before, behind = map(re.escape, self.around_argument)
        return f"{before}{name}{behind}"

    def new_arguments(self, function: Function | None) -> Arguments:
        """Return a reader of the arguments of one call."""
        return TaggedArguments(self, function)

    def unenforced(self, function: Function, limit_s: float = MOST_READING_S) -> list[str]:
        """Return what of a function's schema the grammar leaves out: values but texts follow it, as JSON."""
        return schemas.unenforced(function, limit_s)

    def add_rules(self, rules: Rules) -> None:
        """Add the terminals for texts between tags, with what may stand around them and without."""
        begin, end, value_end = map(escaped, (*self.quotes, self.value_end))
        twice = f"{begin}{ANY}{end}{value_end}(?s:.+)"
        rules.add("QUOTED", without([twice], f"{begin}{ANY}{end}{value_end}"))
        rules.add("PLAIN", without([begin + ANY, f"{ANY}{value_end}(?s:.+)"], ANY + value_end))

    def arguments_rule(self, rules: Rules, number: int, function: Function) -> str:
        """Return the item for the arguments of a call, in the order of the schema."""
        schema = parameters_of(function)
        required, properties = schemas.required_of(schema), schemas.properties_of(schema)
        items = []
        for place, (name, each) in enumerate(properties.items()):
            rule = f"argument_{number}_{place}"
            rules.add(rule, f"/{SPACE}{self.argument(escaped(name))}/ ({self._value(each, function)})")
            items.append(rule if name in required else f"{rule}?")
        if not properties and schema.get("additionalProperties") is not False:
            rule = f"argument_{number}"
            value = self._value(schema.get("additionalProperties"), function)
            rules.add(rule, rf"/{SPACE}{self.argument(_ARGUMENT_NAME)}/ ({value})")
            items.append(f"{rule}*")
        return " ".join([*items, f"/{SPACE}{escaped(self.all_end)}/"])

    def _value(self, schema: JsonValue, function: Function) -> str:
        """Return the item for one value, and what ends it: free text, or JSON for other types."""
        root = parameters_of(function)
        choices = schemas.choices_of(schema, root)
        types = frozenset().union(*map(schemas.own_types, choices))
        begin, end, value_end = map(escaped, (*self.quotes, self.value_end))
        if values := schemas.values_of(choices[0]):
            written = [each if isinstance(each, str) else json.dumps(each) for each in values]
            each_of = "|".join(map(escaped, written))
            return f"/({begin}({each_of}){end}|({each_of})){value_end}/"
        if "string" in types:
            return "QUOTED | PLAIN"
        inner: dict[str, JsonValue] = {**(schema if isinstance(schema, dict) else {})}
        inner |= {key: root[key] for key in ("$defs", "definitions") if key in root}
        spelled = [*(["True", "False"] if "boolean" in types else []), *(["None"] if "null" in types else [])]
        plain = f"%json {enforceable(inner, strict=function.strict is True)}"
        return f"/{SPACE}/ ({' | '.join([plain, *map(json.dumps, spelled)])}) /{SPACE}{value_end}/"


class TaggedArguments:
    """Reads a tag for each argument (``Arguments``). Texts arrive in pieces, other values whole.

    Args:
        style: The tags.
        function: The function; None if it is unknown, and any value has any type.
    """

    def __init__(self, style: TaggedCalls, function: Function | None) -> None:
        self.is_done = False
        self._style = style
        self._schema = parameters_of(function) if function is not None else {}
        self._types: frozenset[str] | None = None  # of the value that is read; None between values
        self._end = ""  # of the value; "" until its beginning is known
        self._value: list[str] = []  # its pieces, if it is no text
        self._begin = "{"

    def read(self, text: str) -> tuple[str, str]:
        """Return the next piece of JSON, and the text that is not read yet."""
        pieces = []
        before = -1
        while len(text) != before and not self.is_done:
            before = len(text)
            read = self._read_name if self._types is None else self._read_value
            piece, text = read(text)
            pieces.append(piece)
        return "".join(pieces), text

    def _read_name(self, text: str) -> tuple[str, str]:
        all_end = re.escape(self._style.all_end)
        found = re.search(f"{self._style.argument(f'({_ARGUMENT_NAME})')}|{all_end}", text)
        if found is None:
            return "", text[-MOST_OPENING:]
        rest, begin = text[found.end() :], self._begin
        if found[1] is None:
            self.is_done = True
            return "{}" if begin == "{" else "}", rest
        self._begin, self._end = ", ", ""
        properties, others = schemas.properties_of(self._schema), self._schema.get("additionalProperties")
        self._types = schemas.types_of(properties.get(found[1], others), self._schema)
        return f"{begin}{json.dumps(found[1], ensure_ascii=False)}: ", rest

    def _read_value(self, text: str) -> tuple[str, str]:
        begin, end = self._style.quotes
        is_text = self._types == frozenset({"string"})
        quote = ""
        if not self._end:
            if begin.startswith(text) and text != begin:
                return "", text
            is_quoted = text.startswith(begin)
            text = text[len(begin) :] if is_quoted else text
            self._end = (end if is_quoted else "") + self._style.value_end
            quote = '"' if is_text else ""
        value, found, rest = text.partition(self._end)
        if not found:
            place = len(text) - num_begun(text, self._end)
            value, rest = text[:place], text[place:]
        types, self._types = self._types, None if found else self._types
        if is_text:
            return quote + json.dumps(value, ensure_ascii=False)[1:-1] + ('"' if found else ""), rest
        self._value.append(value)
        if not found:
            return "", rest
        whole, self._value = "".join(self._value), []
        return schemas.json_of(whole, types or schemas.TYPES), rest


QWEN_XML = TaggedCalls(
    name="qwen3_xml",
    signs=("<tool_call>", "<parameter="),
    mark="<tool_call>",
    end="</tool_call>",
    around_function=("<function=", ">"),
    around_argument=("<parameter=", ">"),
    value_end="</parameter>",
    quotes=("\n", "\n"),
    all_end="</function>",
)
MINICPM = TaggedCalls(
    name="minicpm5",
    signs=('<function name="', '<param name="'),
    mark='<function name="',
    around_function=("", '">'),
    around_argument=('<param name="', '">'),
    value_end="</param>",
    quotes=("<![CDATA[", "]]>"),
    all_end="</function>",
)
