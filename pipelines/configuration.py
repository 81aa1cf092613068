"""Turns parsed YAML or JSON into typed dataclasses with pydantic; mistakes become errors of ours.

Nothing is converted or ignored: unknown keys, missing keys, values of another type and numbers that are not
finite are errors. The ranges of values are in the annotations (``pydantic.Field``).
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import re
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BeforeValidator, ConfigDict, TypeAdapter, ValidationError, with_config
from pydantic_core import ErrorDetails, PydanticCustomError, SchemaValidator

from pipelines.errors import DraftproofError

_Document = TypeVar("_Document")

strict = with_config(ConfigDict(extra="forbid", strict=True, allow_inf_nan=False))
"""Decorator for the dataclass of a document; those of its sections need none."""


def _refuse_key(value: object) -> None:
    raise PydanticCustomError("unexpected_keyword_argument", "Unexpected keyword argument")


from_reader = BeforeValidator(_refuse_key)
"""Annotates a field that the reader of a document sets, and the document must not."""

_CONTAINERS = frozenset({"tuple", "list", "dict", "dataclass"})
_LONGEST = 300  # characters of a key or value: a client's may be of any length
_MEMBER = re.compile(r"str|int|float|bool|(?:tuple|list|dict)\[.*")
_UNKNOWN, _MISSING = "unexpected_keyword_argument", "missing"
_OUT_OF_RANGE = ("greater_than", "greater_than_equal", "less_than", "less_than_equal")
_WRONG = {
    "dataclass_type": "is not a mapping",
    "dict_type": "is not a mapping",
    "literal_error": "is not one of the choices",
    **dict.fromkeys(_OUT_OF_RANGE, "is out of range"),
}


def parse(kind: type[_Document], document: Any, error: type[DraftproofError], remedy: str) -> _Document:
    """Fill a dataclass, including nested ones, from a document.

    Args:
        kind: A dataclass with the decorator ``strict``.
        document: The document, as the YAML or JSON parser returned it.
        error: Class of the error to raise.
        remedy: Its remedy, unless the mistake suggests one.

    Raises:
        DraftproofError: A key is unknown or missing, or a value has the wrong type or is out of range.
    """
    return _filled(kind, _validator(typing.cast(type, kind)).validate_python, document, error, remedy)


def parse_json(
    kind: type[_Document], text: str | bytes, error: type[DraftproofError], remedy: str
) -> _Document:
    """Fill a dataclass from JSON; arguments and errors are as for ``parse``."""
    return _filled(kind, _validator(typing.cast(type, kind)).validate_json, text, error, remedy)


def _filled(
    kind: type[_Document],
    validate: Callable[[Any], Any],
    given: Any,
    error: type[DraftproofError],
    remedy: str,
) -> _Document:
    try:
        document: _Document = validate(given)
    except ValidationError as found:
        # A misspelt key is missing too, and what is missing may explain the rest.
        first = min(found.errors(), key=lambda each: (each["type"] != _UNKNOWN, each["type"] != _MISSING))
        raise _explained(kind, first, error, remedy) from None
    return document


def read_yaml(kind: type[_Document], path: Path, error: type[DraftproofError], remedy: str) -> _Document:
    """Fill a dataclass from a YAML file; arguments and errors are as for ``parse``."""
    document = load_yaml(path, error, remedy)
    try:
        return parse(kind, document, error, remedy)
    except DraftproofError as failure:
        raise located(path, failure) from None


def load_yaml(path: Path, error: type[DraftproofError], remedy: str) -> Any:
    """Return the document in a YAML file; raises ``error`` with this remedy if it cannot be read."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as failure:
        raise error(f"{path}: cannot be read: {' '.join(str(failure).split())}", remedy) from None


def read_json(
    kind: type[_Document], path: Path, version: int, error: type[DraftproofError], remedy: str
) -> _Document:
    """Fill a dataclass from a JSON file that a program wrote; see ``parse_versioned``.

    Raises:
        DraftproofError: Also if the file cannot be read.
    """
    try:
        content = path.read_bytes()
    except OSError as failure:
        raise error(f"{path}: cannot be read: {failure}", remedy) from None
    return parse_versioned(kind, content, path, version, error, remedy)


def parse_versioned(
    kind: type[_Document],
    content: bytes,
    path: Path | str,
    version: int,
    error: type[DraftproofError],
    remedy: str,
) -> _Document:
    """Fill a dataclass from the content of a JSON file that a program wrote.

    Args:
        kind: A dataclass with the decorator ``strict``.
        content: Content of the file.
        path: The file, or who sent it, for the error.
        version: What the key ``format`` must be.
        error: Class of the error to raise.
        remedy: Its remedy.

    Raises:
        DraftproofError: As for ``parse``, always with this remedy; also if another version wrote the file.
    """
    try:
        document = json.loads(content)
        found = document.pop("format", None) if isinstance(document, dict) else document
        if found != version:
            raise ValueError(f"format={found!r:.200}, not {version}")
        return parse(kind, document, error, remedy)
    except DraftproofError as failure:
        what = failure.message
    except (ValueError, RecursionError) as failure:
        what = f"cannot be read: {' '.join(str(failure).split())}"
    raise error(f"{path}: {what}", remedy)


def located(place: str | Path, error: DraftproofError) -> DraftproofError:
    """Return the error with the name of the file that it is about."""
    return type(error)(f"{place}: {error.message}", error.remedy)


@functools.cache
def _validator(kind: Any) -> SchemaValidator:
    return SchemaValidator(_with_plain_containers(TypeAdapter(kind).core_schema))


def _with_plain_containers(schema: Any) -> Any:
    """Return pydantic's schema of a strict type that fills tuples from lists and dataclasses from dicts.

    Strict, pydantic does so only while it reads JSON, not from what a parser returned. Numbers, texts and
    truth values stay strict.
    """
    if isinstance(schema, (list, tuple)):
        return type(schema)(map(_with_plain_containers, schema))
    if not isinstance(schema, dict):
        return schema
    whole = {key: _with_plain_containers(value) for key, value in schema.items()}
    return {**whole, "strict": False} if whole.get("type") in _CONTAINERS else whole


def _explained(
    kind: type[Any], found: ErrorDetails, error: type[DraftproofError], remedy: str
) -> DraftproofError:
    *sections, key = found["loc"] or ("",)
    prefix = _name(sections) + "." if sections else ""
    name = _name(found["loc"])[:_LONGEST] or "the document"
    if found["type"] in (_UNKNOWN, _MISSING):
        known = _keys(kind, sections)
        near = difflib.get_close_matches(str(key)[:_LONGEST], known, 1, cutoff=0.6)
        if found["type"] == _MISSING:
            remedy = "add it"
        else:
            remedy = f"did you mean {prefix}{near[0]}?" if near else "remove it"
        what = "missing" if found["type"] == _MISSING else "unknown"
        return error(f"{name} is {what}; the keys are {', '.join(known)}", remedy)
    if found["type"] == "literal_error":
        choices = re.findall("'(.*?)'", found["ctx"]["expected"])
        if near := difflib.get_close_matches(str(found["input"])[:_LONGEST], choices, 1):
            remedy = f"did you mean {near[0]}?"
    if sections and _MEMBER.fullmatch(str(key)):  # of a union: which of its types did not fit
        name = _name(sections)
    wrong = _WRONG.get(found["type"], "has the wrong type" if found["type"].endswith("_type") else "is wrong")
    must = re.sub(r"^\w+ should ", "it must ", found["msg"]).replace("a valid tuple", "a list")
    limit = "" if wrong == "is not a mapping" else f": {must}"
    return error(f"{name}={found['input']!r:.200} {wrong}{limit}", remedy)


def _name(location: typing.Iterable[int | str]) -> str:
    parts = [f"[{each}]" if isinstance(each, int) else f".{each}" for each in location if each != "[key]"]
    return "".join(parts).lstrip(".")


def _keys(kind: Any, sections: list[int | str]) -> list[str]:
    """Return the keys of a section: fields of the dataclass that the path leads to."""
    for name in sections:
        hints = typing.get_type_hints(typing.get_origin(kind) or kind)
        if name in hints:  # else an index of a tuple or a key of a dict, whose type was found already
            kind = _dataclass(hints[str(name)])
    hints = typing.get_type_hints(typing.get_origin(kind) or kind, include_extras=True)
    return [name for name, hint in hints.items() if from_reader not in getattr(hint, "__metadata__", ())]


def _dataclass(hint: Any) -> Any:
    """Return the dataclass in a type such as ``tuple[Step, ...]`` or ``Growth | None``."""
    if dataclasses.is_dataclass(typing.get_origin(hint) or hint):
        return hint
    return next(filter(None, map(_dataclass, typing.get_args(hint))), None)
