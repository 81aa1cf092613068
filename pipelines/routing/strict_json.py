"""A frozen dataclass from JSON: every key known, every key there, every value of its type."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import types
import typing
from typing import Any, TypeVar

from pipelines.errors import CanaryError

_Read = TypeVar("_Read")

_LARGEST = 1e300  # beyond it a float is on its way to infinity


def parse(cls: type[_Read], raw: Any, name: str = "") -> _Read:
    """Build a dataclass from what ``json.loads`` gave.

    Args:
        cls: Its fields may be texts, numbers, bools, literals, tuples of one type, dataclasses, or None.
        raw: Has a key for each field, also for those with a default.
        name: Of this value in the whole document; "" for the whole.

    Raises:
        CanaryError: A key is unknown or missing, a value has another type, or the class refuses it.
    """
    if not isinstance(raw, dict):
        raise _wrong("not a mapping", name or "the whole", raw, "keys and values")
    kinds = _kinds(typing.cast(type, cls))
    known = ", ".join(kinds)
    prefix = f"{name}." if name else ""
    for key in raw:
        if key not in kinds:
            near = difflib.get_close_matches(str(key), kinds, 1, cutoff=0.5)
            remedy = f"did you mean {prefix}{near[0]}?" if near else "remove it"
            raise CanaryError(
                "unknown key", values=f"{prefix}{key}", limit=f"known here: {known}", remedy=remedy
            )
    if missing := [key for key in kinds if key not in raw]:
        raise CanaryError(
            "a key is missing", values=f"{prefix}{missing[0]}", limit=f"required: {known}", remedy="add it"
        )
    return cls(**{key: _value(kind, raw[key], f"{prefix}{key}") for key, kind in kinds.items()})


def located(where: str, error: CanaryError) -> CanaryError:
    """The same error, with the file that it is about."""
    return CanaryError(f"{where}: {error.what}", values=error.values, limit=error.limit, remedy=error.remedy)


@functools.cache
def _kinds(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _value(kind: Any, raw: Any, name: str) -> Any:
    origin, choices = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):  # the second where one side is a literal
        return None if raw is None else _value(choices[0], raw, name)
    if origin is typing.Literal:
        if raw not in choices:
            raise _wrong("a value is not one of the choices", name, raw, ", ".join(map(repr, choices)))
        return raw
    if origin is tuple:
        if not isinstance(raw, list):
            raise _wrong("a value has the wrong type", name, raw, "a list")
        return tuple(_value(choices[0], each, f"{name}[{index}]") for index, each in enumerate(raw))
    if dataclasses.is_dataclass(kind):
        return parse(typing.cast(type, kind), raw, name)
    if kind is float:
        if type(raw) not in (int, float) or not abs(raw) < _LARGEST:
            raise _wrong("a value has the wrong type", name, raw, "a finite number")
        return float(raw)
    if type(raw) is not kind:
        raise _wrong("a value has the wrong type", name, raw, kind.__name__)
    return raw


def _wrong(what: str, name: str, raw: Any, limit: str) -> CanaryError:
    return CanaryError(what, values=f"{name}={raw!r:.200}", limit=limit, remedy="correct it")
