"""Parsed YAML into frozen dataclasses, strictly: unknown keys, wrong types and bad ranges are refused.

The limits of a value stand where the value does, in the field's metadata (``choice``, ``whole``,
``fraction``); its type is the field's annotation.
"""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pipelines.errors import RecipeError

_Section = TypeVar("_Section")
_REMEDY = "correct the recipe"


def choice(*allowed: str, default: Any = dataclasses.MISSING) -> Any:
    """A field that holds one of some words."""
    return dataclasses.field(default=default, metadata={"allowed": allowed})


def whole(minimum: int = 1, default: Any = dataclasses.MISSING, remedy: str = _REMEDY) -> Any:
    """A field that holds a whole number of at least ``minimum``; without this the minimum is 1."""
    return dataclasses.field(default=default, metadata={"minimum": minimum, "remedy": remedy})


def refuse(path: Path, what: str, values: str, limit: str, remedy: str = _REMEDY) -> RecipeError:
    """The error for a mistake in the file ``path``."""
    return RecipeError(f"{path}: {what}", values=values, limit=limit, remedy=remedy)


def parse_section(
    path: Path, cls: type[_Section], raw: Any, prefix: str = "", given: Mapping[str, Any] | None = None
) -> _Section:
    """Fill a dataclass, and those inside it, from a parsed mapping.

    Args:
        path: The file, for error messages.
        cls: A dataclass whose fields are ``int``, ``float``, ``bool``, ``str``, ``tuple[int, ...]``,
            dataclasses, or one of these or None.
        raw: What the YAML parser gave.
        prefix: Where in the file this section stands, ending in a dot.
        given: Values that do not come from the file; their names are unknown keys in it.

    Raises:
        RecipeError: A key is unknown, missing, or has a value of the wrong type or range.
    """
    if not isinstance(raw, dict):
        where = prefix.rstrip(".") or "the file"
        raise refuse(path, "a section is not a mapping", f"{where}: {type(raw).__name__}", "keys and values")
    values: dict[str, Any] = dict(given or {})
    hints = typing.get_type_hints(cls)
    fields = {
        field.name: field
        for field in dataclasses.fields(cls)  # type: ignore[arg-type]
        if field.name not in values
    }
    for key in raw:
        if key not in fields:
            near = difflib.get_close_matches(str(key), list(fields), 1, cutoff=0.5)
            hint = f"did you mean {prefix}{near[0]}?" if near else "remove it"
            raise refuse(path, "unknown key", f"{prefix}{key}", f"known here: {', '.join(fields)}", hint)
    for key, field in fields.items():
        if key in raw and not (raw[key] is None and field.default is None):
            values[key] = _value(path, f"{prefix}{key}", field, _kind(hints[key]), raw[key])
        elif field.default is dataclasses.MISSING:
            raise refuse(path, "a key is missing", f"{prefix}{key}", f"required: {prefix}{key}", "add it")
    return cls(**values)


def _kind(hint: Any) -> Any:
    """The type without ``| None``."""
    if isinstance(hint, types.UnionType):
        return next(item for item in typing.get_args(hint) if item is not type(None))
    return hint


def _value(path: Path, name: str, field: dataclasses.Field[Any], kind: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(kind):
        return parse_section(path, typing.cast(type, kind), value, f"{name}.")
    if kind is int:
        return _whole(path, name, field, value)
    if kind is float:
        return _fraction(path, name, value)
    if kind is bool:
        if not isinstance(value, bool):
            raise refuse(path, "a value has the wrong type", f"{name}={value!r}", "true or false")
        return value
    if typing.get_origin(kind) is tuple:
        return _whole_numbers(path, name, value)
    return _text(path, name, field, value)


def _whole(path: Path, name: str, field: dataclasses.Field[Any], value: Any) -> int:
    minimum = field.metadata.get("minimum", 1)
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise refuse(
            path,
            "a value is out of range",
            f"{name}={value!r}",
            f"a whole number of at least {minimum}",
            field.metadata.get("remedy", _REMEDY),
        )
    return value


def _fraction(path: Path, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise refuse(path, "a value is out of range", f"{name}={value!r}", "a number above 0, at most 1")
    return float(value)


def _whole_numbers(path: Path, name: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not value or any(type(item) is not int or item < 0 for item in value):
        raise refuse(path, "a value has the wrong type", f"{name}={value!r}", "a list of whole numbers")
    return tuple(value)


def _text(path: Path, name: str, field: dataclasses.Field[Any], value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise refuse(path, "a value has the wrong type", f"{name}={value!r}", "text")
    allowed = field.metadata.get("allowed")
    if allowed is not None and value not in allowed:
        near = difflib.get_close_matches(value, allowed, 1)
        hint = f"did you mean {near[0]}?" if near else "choose one of them"
        raise refuse(path, "a value is not one of the choices", f"{name}={value}", ", ".join(allowed), hint)
    return value
