"""Reads JSON schemas of arguments, for calls whose grammars we write ourselves."""

from __future__ import annotations

import functools
import itertools
import json
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias, cast

from pydantic import JsonValue

from pipelines.front_door.messages.tools import Function, parameters_of, schema_of
from pipelines.text.guides import MAX_GUIDE_BYTES

Schema: TypeAlias = "Mapping[str, JsonValue]"
TYPES = frozenset({"string", "integer", "number", "boolean", "null", "object", "array"})
MOST_WARNINGS = 100

_ABOUT = {"title", "description", "default", "examples", "deprecated", "$schema", "$id", "$comment", "type"}
_OF_ALL = {"properties", "required", "additionalProperties", "$defs", "definitions"}
_VALUES = frozenset({"enum", "const"})
_OF_TEXT = _ABOUT | _VALUES | {"$ref", "anyOf", "oneOf"}
_MOST_PARTS = 200  # that a value may be one of

_SPELLED = {"True": "true", "False": "false", "None": "null"}  # as templates write values of Python
_TYPE_NAMES = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}


def properties_of(schema: Schema) -> dict[str, JsonValue]:
    """Return the schemas of the properties of an object."""
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}


def required_of(schema: Schema) -> set[str]:
    """Return the names of the properties that an object must have."""
    found = schema.get("required")
    return {each for each in found if isinstance(each, str)} if isinstance(found, list) else set()


def values_of(schema: Schema) -> list[JsonValue]:
    """Return the values that a schema names with ``enum`` or ``const``."""
    found = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return found if isinstance(found, list) else []


def own_types(schema: Schema) -> frozenset[str]:
    """Return the types of a schema, but for those of its choices."""
    if values := values_of(schema):
        return frozenset(map(_type, values))
    kinds = schema.get("type", [] if _choices(schema) else ["object"] if "properties" in schema else [*TYPES])
    return frozenset(map(str, kinds if isinstance(kinds, list) else [kinds]))


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
    parts = itertools.islice(_walk(schema, root), _MOST_PARTS)
    return [part for part in parts if "$ref" not in part] or [{}]


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


def unenforced(function: Function, limit_s: float) -> list[str]:
    """Return what of a function's schema its grammar leaves out; [] if the schema is too long for any.

    Values that are no texts are JSON, which follows its schema.

    Args:
        function: The function.
        limit_s: Time for it on the processor, in seconds; then the last text says that it was over.
    """
    if len(schema_of(function)) > MAX_GUIDE_BYTES:
        return []
    root, end_s = parameters_of(function), time.thread_time() + limit_s
    found = [f"{keyword} of the arguments" for keyword in sorted(_left_out(root, root, _ABOUT | _OF_ALL))]
    of_reference = functools.cache(lambda reference: _left_out_of_text({"$ref": reference}, root))
    named = properties_of(root) or {"others": root.get("additionalProperties")}
    for name, schema in named.items():
        if time.thread_time() > end_s:
            return [*found[: MOST_WARNINGS - 1], f"{name[:64]} and what follows it took too long to read"]
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if isinstance(schema, dict) and isinstance(reference, str):
            keywords = of_reference(reference) | _left_out(schema, root, _OF_TEXT)
        else:
            keywords = _left_out_of_text(schema, root)
        found += [f"{keyword} of {name[:64]}" for keyword in sorted(keywords)]
        if len(found) >= MOST_WARNINGS:
            break
    return found[:MOST_WARNINGS]


def _left_out_of_text(schema: JsonValue, root: Schema) -> set[str]:
    """Return the keywords that limit a value if it may be a text: tags leave values behind a choice out."""
    parts = list(itertools.islice(_walk(schema, root), _MOST_PARTS))
    choices = [part for part in parts if "$ref" not in part] or [{}]
    if "string" not in frozenset().union(*map(own_types, choices)):
        return set()
    unread = choices[1:] if values_of(choices[0]) else choices
    found = set(_VALUES.intersection(itertools.chain(*unread)))
    return found.union(*(_left_out(part, root, _OF_TEXT) for part in parts))


def _left_out(schema: Schema, root: Schema, known: set[str]) -> set[str]:
    """Return the keywords of a schema that its grammar leaves out; what stands beside choices limits them."""
    limits = schema.keys() - (_ABOUT - {"type"}) - {"$defs", "definitions"}
    found = (schema.keys() - known) | (limits & {"$ref", "anyOf", "oneOf"} if len(limits) > 1 else set())
    if "$ref" in schema and _target(schema["$ref"], root) is None:
        found.add("$ref")
    return found | ({"required"} if required_of(schema) - properties_of(schema).keys() else set())


def _walk(schema: JsonValue, root: Schema) -> Iterator[Schema]:
    """Yield a schema, and what it refers to and chooses from: each once."""
    found = set()
    waiting = deque([schema])
    while waiting:
        each = waiting.popleft()
        part = each if isinstance(each, dict) else {}
        if id(part) not in found:
            found.add(id(part))
            yield part
            waiting += [_target(part["$ref"], root)] if "$ref" in part else _choices(part)


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


def _type(value: JsonValue) -> str:
    return _TYPE_NAMES.get(type(value), "null" if value is None else "object")
