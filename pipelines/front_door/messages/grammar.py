r"""Plans an answer with thoughts, tool calls or a structured answer: its Lark grammar, and how it is read.

The grammar begins with the answer and covers all of it: free text, up to the mark behind which it limits the
tokens. So it remains a function of the output so far, and the answer with a draft is that of the target alone
(``docs/decisions/sampling.md``).

Free text is a terminal that excludes the mark, and text that ends with the mark is one that contains it only
there, ``/(?s:.*)MARK/ & ~/(?s:.*)MARK(?s:.+)/``. Special tokens are written by their ids, ``<[5]>``.

Source: https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from pydantic import JsonValue

from pipelines.errors import ChatTemplateError, InvalidRequestError
from pipelines.front_door.messages import arguments
from pipelines.front_door.messages.answer_format import GuideParts, enforceable, lark_of
from pipelines.front_door.messages.harmony import HarmonyReader, harmony_guide
from pipelines.front_door.messages.reader import MessageReader
from pipelines.front_door.messages.style import (
    ARGS,
    ARGUMENT_NAME,
    CALL_ID,
    CALL_STYLES,
    HARMONY,
    SPACE,
    THINK_BEGIN,
    THINK_END,
    CallStyle,
    MessageStyle,
    Tags,
    Thinking,
)
from pipelines.front_door.messages.tools import Calling, Function, parameters_of, schema_of
from pipelines.text.guides import MAX_GUIDE_BYTES

_ANY = "(?s:.*)"


@dataclass(frozen=True)
class AnswerPlan:
    """The parts that an answer may have.

    Attributes:
        style: How the model writes messages.
        calling: The functions that it may call; None for none.
        content: The guide of its text; None for free text.

    Raises:
        ChatTemplateError: The request has tools, and how the model calls them is unknown.
    """

    style: MessageStyle
    calling: Calling | None
    content: GuideParts | None

    def __post_init__(self) -> None:
        if self.calling is not None and self.style.calls is None:
            raise ChatTemplateError(
                "the model calls no tools",
                values=f"tools={', '.join(function.name for function in self.calling.functions)[:200]}",
                limit="a chat template that writes calls as one of "
                + ", ".join(known.name for known in (*CALL_STYLES, HARMONY)),
                remedy="serve a model with such a template, or leave tools out",
            )

    @property
    def has_special_marks(self) -> bool:
        """Whether the answer is read by names of special tokens, so that its text must have them."""
        return bool(self.style.special_marks(with_calls=self._calls is not None))

    def guide(self, thinking: Thinking) -> GuideParts | None:
        """Return the guide of an answer that begins with these thoughts.

        Raises:
            InvalidRequestError: The form of the text cannot stand behind thoughts or beside tools.
        """
        return guide_of_answer(self.style, thinking, self.calling, self.content)

    def new_reader(self, thinking: Thinking) -> MessageReader:
        """Return a reader of one answer."""
        functions = self.calling.functions if self.calling is not None and self._calls is not None else ()
        if self.style.calls is HARMONY:
            return HarmonyReader(thinking, functions)
        is_structured = self.content is not None or self.calling is None or self.calling.mode == "required"
        return MessageReader(
            thinking,
            self._calls,
            thoughts=self.style.thoughts,
            functions=functions,
            is_structured=is_structured,
            is_parallel=self.calling is None or self.calling.is_parallel,
        )

    @property
    def _calls(self) -> CallStyle | None:
        """How the answer calls functions, if it may."""
        return self.style.calls if self.calling is not None and self.calling.mode != "none" else None


def guide_of_answer(
    style: MessageStyle, thinking: Thinking, calling: Calling | None, content: GuideParts | None
) -> GuideParts | None:
    """Return the guide of an answer; None if nothing limits it.

    Args:
        style: How the model writes messages; it has a style of calls if there is a calling.
        thinking: Whether thoughts come before the answer.
        calling: The functions that it may call; None for none.
        content: The guide of its text; None for free text.

    Raises:
        InvalidRequestError: The content's guide cannot stand behind thoughts or beside tools, a strict schema
            cannot be enforced, a schema is too long, or a text of gpt-oss is continued that must be a call.
    """
    if style.calls is HARMONY:
        return harmony_guide(style, thinking, calling, content)
    if calling is None and (content is None or thinking is Thinking.NONE):
        return content
    writer = _Writer(style, thinking)
    writer.write_answer(calling, content)
    return ("lark_grammar", "\n".join(writer.rules) + "\n")


class _Writer:
    """Collects the rules and terminals of one grammar.

    Attributes:
        rules: Lines of the grammar.
    """

    def __init__(self, style: MessageStyle, thinking: Thinking) -> None:
        self.rules: list[str] = []
        self._num_bytes = 0  # of the rules
        self._names: dict[str, str] = {}  # of rules for bare values, by their schemas
        self._waiting: list[tuple[str, JsonValue, arguments.Schema]] = []  # rules that are named only
        self._style = style
        self._thinking = thinking
        self._think_begin, self._think_end = style.thoughts or (THINK_BEGIN, THINK_END)

    def write_answer(self, calling: Calling | None, content: GuideParts | None) -> None:
        """Write the rules of an answer; see ``guide_of_answer``."""
        answers = []
        if calling is None or calling.mode != "required":
            answers.append(self._text(calling) if content is None else lark_of(content))
        if calling is not None and calling.mode != "none":
            assert self._style.calls is not None
            answers.append(self._calls(self._style.calls, calling, content))
        # Free text contains the spaces behind thoughts; a rule for them beside it would be ambiguous.
        is_free = content is None and (calling is None or calling.mode != "required")
        self.rules.insert(0, f"start: {self._thoughts(gap='' if is_free else 'SPACE?')} answer")
        self._add("answer", " | ".join(answers))
        self._add("SPACE", r"/[ \n\r\t]{1,4}/")

    def _thoughts(self, gap: str) -> str:
        """Return the item for thoughts and the spaces behind them."""
        if self._thinking is Thinking.NONE:
            return ""
        until_end = f"{self._until(self._think_end, 'THOUGHTS')} {gap}"
        if self._thinking is Thinking.BEGUN:
            return until_end
        return f"({self._literal(self._think_begin)} {until_end})?"

    def _text(self, calling: Calling | None) -> str:
        """Return the item for free text, in which nothing opens a call or thoughts."""
        style = self._style.calls
        excluded = []
        if self._thinking is Thinking.POSSIBLE:
            excluded.append(rf"\s*{_escaped(self._think_begin)}{_ANY}")
        if calling is not None and style is not None:
            excluded.append(f"{_ANY}{_escaped(style.mark)}{_ANY}")
            for function in calling.functions if style.is_bare else ():
                opening = style.bare_opening([function.name])
                excluded.append("".join(rf"\s*{_escaped(piece)}" for [piece] in opening) + _ANY)
        self._add("TEXT", _without(excluded))
        return "TEXT"

    def _calls(self, style: CallStyle, calling: Calling, content: GuideParts | None) -> str:
        """Return the item for tool calls with what stands before them."""
        if style.is_bare and content is not None and calling.mode == "auto":
            raise InvalidRequestError(
                "a structured answer cannot be told from a tool call",
                values=f"response_format beside tools; the model writes calls as {style.name}",
                limit="one of them, as both are bare JSON",
                remedy='send tool_choice="required" or "none", or no response_format',
            )
        if style.tags is not None:
            self._add_texts(style.tags)
        if style.quote:
            self._add_bare(style.quote)
        calls = [self._call(number, style, each) for number, each in enumerate(calling.functions)]
        while self._waiting:  # no recursion: references may be long chains
            self._add_value(*self._waiting.pop())
        self._add("call", " | ".join(calls))
        if style.is_bare:
            return f"({self._literal(style.mark)})? call" if style.mark in self._style.special else "call"
        is_behind_text = calling.mode == "auto" and content is None
        first = self._until(style.mark, "BEFORE") if is_behind_text else self._literal(style.mark)
        if style.is_list:
            more = f" (/{SPACE},{SPACE}/ call)*" if calling.is_parallel else ""
            return rf"{first} /{SPACE}\[{SPACE}/ call{more} /{SPACE}\]/"
        more = f" ({self._literal(style.mark)} call)*" if calling.is_parallel else ""
        return f"{first} call{more}"

    def _call(self, number: int, style: CallStyle, function: Function) -> str:
        """Return the item for a call of one function."""
        schema = schema_of(function)
        self._check_length(schema)
        if function.strict and (left_out := arguments.unenforced_by(style, function)):
            raise InvalidRequestError(
                "a strict schema cannot be enforced whole",
                values=f"the function {function.name}: {', '.join(left_out)[:300]}",
                limit=f"what a grammar of calls as {style.name} enforces",
                remedy="leave these keywords out, or strict",
            )
        if not style.arguments:
            call_id = f"({self._literal(CALL_ID)} /[A-Za-z0-9]{{9}}/)?"
            return f"{json.dumps(function.name)} {call_id} {self._literal(ARGS)} %json {schema}"
        self._add(f"HEAD_{number}", rf"/{SPACE}{style.head(_escaped(function.name))}/")
        end = f" {self._literal(style.end)}" if style.end else ""
        if style.tags is not None:
            return f"HEAD_{number} {self._tagged(number, style.tags, function)}{end}"
        if style.quote:
            return f"HEAD_{number} {self._members(parameters_of(function), parameters_of(function))}{end}"
        return rf"HEAD_{number} %json {schema} /{SPACE}\}}/{end}"

    def _tagged(self, number: int, tags: Tags, function: Function) -> str:
        """Return the item for the arguments of a function, in the order of its schema."""
        schema = parameters_of(function)
        required, properties = arguments.required_of(schema), arguments.properties_of(schema)
        items = []
        for place, (name, each) in enumerate(properties.items()):
            rule = f"argument_{number}_{place}"
            self._add(rule, f"/{SPACE}{tags.name(_escaped(name))}/ ({self._value(each, tags, function)})")
            items.append(rule if name in required else f"{rule}?")
        if not properties and schema.get("additionalProperties") is not False:
            rule = f"argument_{number}"
            value = self._value(schema.get("additionalProperties"), tags, function)
            self._add(rule, rf"/{SPACE}{tags.name(ARGUMENT_NAME)}/ ({value})")
            items.append(f"{rule}*")
        return " ".join([*items, f"/{SPACE}{_escaped(tags.all_end)}/"])

    def _add_texts(self, tags: Tags) -> None:
        """Add the terminals for texts between tags, with what may stand around them and without."""
        begin, end, value_end = map(_escaped, (*tags.quotes, tags.value_end))
        twice = f"{begin}{_ANY}{end}{value_end}(?s:.+)"
        self._add("QUOTED", _without([twice], f"{begin}{_ANY}{end}{value_end}"))
        self._add("PLAIN", _without([begin + _ANY, f"{_ANY}{value_end}(?s:.+)"], _ANY + value_end))

    def _value(self, schema: JsonValue, tags: Tags, function: Function) -> str:
        """Return the item for one value, and what ends it: free text, or JSON for other types."""
        root = parameters_of(function)
        choices = arguments.choices_of(schema, root)
        types = frozenset().union(*map(arguments.own_types, choices))
        begin, end, value_end = map(_escaped, (*tags.quotes, tags.value_end))
        if values := arguments.values_of(choices[0]):
            written = [each if isinstance(each, str) else json.dumps(each) for each in values]
            each_of = "|".join(map(_escaped, written))
            return f"/({begin}({each_of}){end}|({each_of})){value_end}/"
        if "string" in types:
            return "QUOTED | PLAIN"
        inner: dict[str, JsonValue] = {**(schema if isinstance(schema, dict) else {})}
        inner |= {key: root[key] for key in ("$defs", "definitions") if key in root}
        spelled = [*(["True", "False"] if "boolean" in types else []), *(["None"] if "null" in types else [])]
        plain = f"%json {enforceable(inner, strict=function.strict is True)}"
        return f"/{SPACE}/ ({' | '.join([plain, *map(json.dumps, spelled)])}) /{SPACE}{value_end}/"

    def _add_bare(self, quote: str) -> None:
        """Add the rules for texts and any values like JSON with bare keys."""
        plain = enforceable({"type": ["number", "boolean", "null"]}, strict=True)
        self._add("BARE", _without([f"{_ANY}{_escaped(quote)}{_ANY}"]))
        self._add("quote", self._literal(quote))
        self._add("text", "quote BARE? quote")
        self._add("KEY", '/[^{}\\[\\],:<"\\n]{1,64}:/')
        self._add("pair", "KEY anything")
        self._add("pairs", '(pair ("," pair)*)? "}"')
        self._add("anything", f'text | %json {plain} | "{{" pairs | "[" (anything ("," anything)*)? "]"')

    def _bare(self, schema: JsonValue, root: arguments.Schema) -> str:
        """Return the name of the rule for a value like JSON with bare keys."""
        key = f"{id(root)} {json.dumps(schema)}"
        if key in self._names:  # also inside itself
            return self._names[key]
        rule = self._names[key] = f"value_{len(self._names)}"
        self._waiting.append((rule, schema, root))
        return rule

    def _add_value(self, rule: str, schema: JsonValue, root: arguments.Schema) -> None:
        """Add the rule for a value like JSON with bare keys."""
        items = []
        for part in arguments.choices_of(schema, root):
            kinds, values = arguments.own_types(part), arguments.values_of(part)
            texts = [json.dumps(each, ensure_ascii=False) for each in values if isinstance(each, str)]
            items += [f"quote {text} quote" for text in texts]
            if kinds == arguments.TYPES:
                items, kinds = [*items, "anything"], frozenset()
            if "string" in kinds and not values:
                items.append("text")
            if "array" in kinds:
                each = self._bare(part.get("items"), root)
                items.append(f'"[" ({each} ("," {each})*)? "]"')
            if "object" in kinds:
                items.append(f'"{{" {self._members(part, root)}')
            if plain := sorted(kinds - {"string", "array", "object"}):
                items.append(f"%json {enforceable({**part, 'type': [*plain]}, strict=False)}")
        self._add(rule, " | ".join(items or ["text"]))

    def _members(self, schema: arguments.Schema, root: arguments.Schema) -> str:
        """Return the item for the members of an object behind its brace, in the order of the alphabet."""
        required, properties = arguments.required_of(schema), arguments.properties_of(schema)
        if not properties and (others := schema.get("additionalProperties")) is not False:
            pair = f"KEY {self._bare(others, root)}"
            return f'({pair} ("," {pair})*)? "}}"'
        first = rest = ""
        for name, each in sorted(properties.items(), key=lambda item: item[0].lower(), reverse=True):
            pair = f"{json.dumps(f'{name}:', ensure_ascii=False)} {self._bare(each, root)}"
            rule = f"members_{len(self.rules)}"
            self._add(rule, f'"," {pair} {rest}' + ("" if name in required else f" | {rest}"))
            first, rest = f"{pair} {rest}" + ("" if name in required else f" | {first}"), rule
        return f'({first}) "}}"' if first else '"}"'

    def _until(self, mark: str, name: str) -> str:
        """Return the item for free text up to a mark and the mark itself."""
        thoughts = rf"\s*{_escaped(self._think_begin)}{_ANY}"
        excluded = [thoughts] if self._thinking is Thinking.POSSIBLE and mark != self._think_end else []
        if any(mark.startswith(name) for name in self._style.special):
            self._add(name, _without([f"{_ANY}{_escaped(mark)}{_ANY}", *excluded]))
            return f"{name}? {self._literal(mark)}"
        self._add(name, _without([f"{_ANY}{_escaped(mark)}(?s:.+)", *excluded], _ANY + _escaped(mark)))
        return name

    def _literal(self, mark: str) -> str:
        """Return the item for a mark, behind a few spaces if it is text."""
        special = next((name for name in self._style.special if mark.startswith(name)), None)
        if special is None:
            return rf"/{SPACE}{_escaped(mark)}/"
        rest = mark[len(special) :]
        return f"<[{self._style.special[special]}]>" + (f" {json.dumps(rest)}" if rest else "")

    def _add(self, name: str, body: str) -> None:
        self._check_length(body)
        self._num_bytes += len(body)
        self.rules.append(f"{name}: {body}")

    def _check_length(self, added: str) -> None:
        """Refuse more than a guide may have, before it is written."""
        if self._num_bytes + len(added) > MAX_GUIDE_BYTES:
            raise InvalidRequestError(
                "the grammar of the answer is too long",
                values=f"{self._num_bytes + len(added)} bytes and more",
                limit=f"at most {MAX_GUIDE_BYTES} bytes",
                remedy="send simpler schemas, with fewer references to large ones, or fewer tools",
            )


def _without(excluded: list[str], included: str = _ANY) -> str:
    """Return the terminal for text that matches one regular expression and none of the others."""
    return " & ".join([f"/{included}/", *(f"~/{each}/" for each in excluded)])


def _escaped(text: str) -> str:
    """Return a regular expression for a text, inside slashes."""
    return re.escape(text).replace("/", r"\/").replace("\\\n", r"\n")
