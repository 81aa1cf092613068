"""Reads the arguments of a call as JSON, as they arrive, from each form in which models write them."""

from __future__ import annotations

import functools
import itertools
import json
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias, cast

from pydantic import JsonValue

from pipelines.front_door.messages.style import ARGUMENT_NAME, MOST_OPENING, CallStyle, Tags
from pipelines.front_door.messages.tools import Function, parameters_of, schema_of
from pipelines.text.guides import MAX_GUIDE_BYTES

Schema: TypeAlias = "Mapping[str, JsonValue]"
TYPES = frozenset({"string", "integer", "number", "boolean", "null", "object", "array"})

_ABOUT = {"title", "description", "default", "examples", "deprecated", "$schema", "$id", "$comment", "type"}
_OF_ALL = {"properties", "required", "additionalProperties", "$defs", "definitions"}
_VALUES = frozenset({"enum", "const"})
_READ = _ABOUT | _VALUES | {"$ref", "anyOf", "oneOf"}
_LIMITS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}  # of numbers
_OF_BARE = _READ | _OF_ALL | _LIMITS | {"items"}
MOST_WARNINGS = 100
MOST_READING_S = 0.2
_MOST_PARTS = 200  # that a value may be one of

_SPACES, _BARE = re.compile(r"\s*"), re.compile(r"[^{}\[\],:<]*")
_SPELLED = {"True": "true", "False": "false", "None": "null"}  # as templates write values of Python
_TYPE_NAMES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}


class JsonArguments:
    """Reads a JSON object.

    Attributes:
        is_done: Whether it has ended.
    """

    def __init__(self) -> None:
        self.is_done = False
        self._depth = 0  # of braces
        self._is_quoted = self._is_escaped = False

    def read(self, text: str) -> tuple[str, str]:
        """Return the next piece of JSON, and the text that is not read yet.

        Args:
            text: What was not read before, and what follows it.
        """
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


class TaggedArguments:
    """Reads a tag for each argument. Texts arrive in pieces, other values whole.

    Attributes:
        is_done: Whether the arguments have ended.

    Args:
        tags: The tags.
        function: The function; None if it is unknown, and any value has any type.
    """

    def __init__(self, tags: Tags, function: Function | None) -> None:
        self.is_done = False
        self._tags = tags
        self._schema = parameters_of(function) if function is not None else {}
        self._types: frozenset[str] | None = None  # of the value that is read; None between values
        self._end = ""  # of the value; "" until its beginning is known
        self._value: list[str] = []  # its pieces, if it is no text
        self._begin = "{"

    def read(self, text: str) -> tuple[str, str]:
        """Return the next piece of JSON, and the text that is not read yet; see ``JsonArguments.read``."""
        pieces = []
        before = -1
        while len(text) != before and not self.is_done:
            before = len(text)
            read = self._read_name if self._types is None else self._read_value
            piece, text = read(text)
            pieces.append(piece)
        return "".join(pieces), text

    def _read_name(self, text: str) -> tuple[str, str]:
        found = re.search(f"{self._tags.name(f'({ARGUMENT_NAME})')}|{re.escape(self._tags.all_end)}", text)
        if found is None:
            return "", text[-MOST_OPENING:]
        rest, begin = text[found.end() :], self._begin
        if found[1] is None:
            self.is_done = True
            return "{}" if begin == "{" else "}", rest
        self._begin, self._end = ", ", ""
        schema = properties_of(self._schema).get(found[1], self._schema.get("additionalProperties"))
        self._types = types_of(schema, self._schema)
        return f"{begin}{json.dumps(found[1], ensure_ascii=False)}: ", rest

    def _read_value(self, text: str) -> tuple[str, str]:
        begin, end = self._tags.quotes
        is_text = self._types == frozenset({"string"})
        quote = ""
        if not self._end:
            if begin.startswith(text) and text != begin:
                return "", text
            is_quoted = text.startswith(begin)
            text = text[len(begin) :] if is_quoted else text
            self._end = (end if is_quoted else "") + self._tags.value_end
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
        return json_of(whole, types or TYPES), rest


class BareArguments:
    """Reads an object like JSON with bare keys and quotes of its own, behind its brace; texts arrive whole.

    A key ends at the first colon before a value, so it may have colons, commas and brackets itself.

    Attributes:
        is_done: Whether the arguments have ended.

    Args:
        quote: What stands around texts.
    """

    def __init__(self, quote: str) -> None:
        self.is_done = False
        self._quote = quote
        self._open: list[str] = []  # braces and brackets
        self._begin = "{"
        self._is_in_object = False  # where a key comes next
        # Places in the text that is not read yet: what was looked at ends, and a colon that may end a key.
        self._seen = self._colon = 0

    def read(self, text: str) -> tuple[str, str]:
        """Return the next piece of JSON, and the text that is not read yet; see ``JsonArguments.read``."""
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
        if text.startswith(self._quote, at):
            begin = at + len(self._quote)
            end = text.find(self._quote, max(begin, self._seen))
            if end < 0:
                self._seen = len(text) - len(self._quote) + 1
                return None
            return "text", text[begin:end], end + len(self._quote)
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
            behind = text[end : end + len(self._quote)]
            if self._quote.startswith(behind) and behind != self._quote:  # "" at the end of the text
                return None
            is_value = behind[0] in "{[" or behind == self._quote
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
            return json_of(part, TYPES)
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


def num_begun(text: str, mark: str) -> int:
    """Return how many characters at the end of a text may become a mark."""
    sizes = range(min(len(mark) - 1, len(text)), 0, -1)
    return next((size for size in sizes if text.endswith(mark[:size])), 0)


def properties_of(schema: Schema) -> dict[str, JsonValue]:
    """Return the schemas of the properties of an object."""
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}


def types_of(schema: JsonValue, root: Schema) -> frozenset[str]:
    """Return the JSON types that a schema allows, perhaps more than it does.

    Args:
        schema: The schema.
        root: The schema that its references are in.
    """
    return frozenset().union(*map(own_types, choices_of(schema, root)))


def choices_of(schema: JsonValue, root: Schema) -> list[Schema]:
    """Return a schema and those that it chooses from, without references; {} if anything goes.

    Args:
        schema: The schema.
        root: The schema that its references are in.
    """
    parts = itertools.islice(_walk([("", schema)], root), _MOST_PARTS)
    return [part for _, part in parts if "$ref" not in part] or [{}]


def _walk(
    schemas: Iterable[tuple[str, JsonValue]], root: Schema, *, is_deep: bool = False
) -> Iterator[tuple[str, Schema]]:
    """Yield named schemas and what they refer to, choose from and, if deep, consist of: each once."""
    found = set()
    waiting = deque(schemas)
    while waiting:
        name, schema = waiting.popleft()
        part = schema if isinstance(schema, dict) else {}
        if id(part) in found:
            continue
        found.add(id(part))
        yield name, part
        inner = [_target(part["$ref"], root)] if "$ref" in part else _choices(part)
        if is_deep:
            inner = [*inner, part.get("items"), part.get("additionalProperties")]
            waiting += properties_of(part).items()
        waiting += [(name, each) for each in inner]


def unenforced_by(style: CallStyle | None, function: Function, limit_s: float = MOST_READING_S) -> list[str]:
    """Return what of a function's schema the grammar of tags or bare keys leaves out; [] if it is refused.

    Args:
        style: How the model writes calls.
        function: The function.
        limit_s: Time for it on the processor, in seconds; then the last text says that it was over.
    """
    if style is None or not (style.tags or style.quote) or len(schema_of(function)) > MAX_GUIDE_BYTES:
        return []
    return list(itertools.islice(_unenforced_by(style, function, limit_s), MOST_WARNINGS))


def _unenforced_by(style: CallStyle, function: Function, limit_s: float) -> Iterator[str]:
    end_s = time.thread_time() + limit_s
    root, known = parameters_of(function), _OF_BARE if style.quote else _READ
    named = properties_of(root) or {"others": root.get("additionalProperties")}
    for keyword in sorted(_left_out(root, root, _ABOUT | _OF_ALL)):
        yield f"{keyword} of the arguments"
    of_reference = functools.cache(lambda reference: _told({"$ref": reference}, root))

    def told(schema: JsonValue) -> tuple[frozenset[str], frozenset[str]]:
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        return of_reference(reference) if isinstance(reference, str) else _told(schema, root)

    texts = {}
    for name, schema in named.items():
        if time.thread_time() > end_s:
            yield f"{name[:64]} and what follows it took too long to read"
            return
        types, unread = told(schema)
        if "string" in types:
            texts[name] = schema
            for keyword in sorted(unread) if style.tags else ():
                yield f"{keyword} of {name[:64]}"
    walked = _walk(named.items(), root, is_deep=True) if style.quote else _walk(texts.items(), root)
    for name, part in walked:
        if time.thread_time() > end_s:
            yield f"{name[:64]} and what follows it took too long to read"
            return
        for keyword in sorted(_left_out(part, root, known)):
            yield f"{keyword} of {name[:64]}"


def _told(schema: JsonValue, root: Schema) -> tuple[frozenset[str], frozenset[str]]:
    """Return the types that a schema allows, and what names values behind a choice, which tags leave out."""
    first, *others = choices = choices_of(schema, root)
    unread = others if values_of(first) else choices
    return frozenset().union(*map(own_types, choices)), _VALUES.intersection(itertools.chain(*unread))


def _left_out(schema: Schema, root: Schema, known: set[str]) -> set[str]:
    """Return the keywords of a schema that its grammar leaves out; what stands beside choices limits them."""
    limits = schema.keys() - (_ABOUT - {"type"}) - {"$defs", "definitions"}
    found = (schema.keys() - known) | (limits & {"$ref", "anyOf", "oneOf"} if len(limits) > 1 else set())
    if "$ref" in schema and _target(schema["$ref"], root) is None:
        found.add("$ref")
    return found | ({"required"} if required_of(schema) - properties_of(schema).keys() else set())


def values_of(schema: Schema) -> list[JsonValue]:
    """Return the values that a schema names with ``enum`` or ``const``."""
    found = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return found if isinstance(found, list) else []


def required_of(schema: Schema) -> set[str]:
    """Return the names of the properties that an object must have."""
    found = schema.get("required")
    return {each for each in found if isinstance(each, str)} if isinstance(found, list) else set()


def _target(reference: JsonValue, root: Schema) -> JsonValue:
    """Return what a reference names; None if it is not in the schema."""
    if not isinstance(reference, str) or not f"{reference}/".startswith("#/"):
        return None
    found: Any = root
    for part in reference.split("/")[1:]:
        found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    return cast("JsonValue", found)


def _choices(schema: Schema) -> list[JsonValue]:
    found = schema.get("anyOf", schema.get("oneOf"))
    return found if isinstance(found, list) and not values_of(schema) else []


def own_types(schema: Schema) -> frozenset[str]:
    """Return the types of a schema, but for those of its choices."""
    if values := values_of(schema):
        return frozenset(map(_type, values))
    kinds = schema.get("type", [] if _choices(schema) else ["object"] if "properties" in schema else [*TYPES])
    return frozenset(map(str, kinds if isinstance(kinds, list) else [kinds]))


def json_of(text: str, types: frozenset[str]) -> str:
    """Return a value that was written without quotes as JSON of one of these types, else as a text."""
    spelled = _SPELLED.get(text.strip(), text.strip())
    try:
        found = json.loads(spelled, parse_constant=int)  # which refuses NaN and Infinity, as JSON does
    except (ValueError, RecursionError):
        found = text
    kind = _type(found)
    if kind != "string" and (kind in types or (kind == "integer" and "number" in types)):
        return spelled
    return json.dumps(text, ensure_ascii=False)


def _type(value: JsonValue) -> str:
    return _TYPE_NAMES.get(type(value), "null" if value is None else "object")
