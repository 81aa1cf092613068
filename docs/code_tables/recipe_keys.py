"""Lists the keys of a recipe from the dataclasses that check it."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from typing import Any

from build.recipe import Recipe

_NOT_SHOWN = {"path", "draft"}  # not a key; the same keys as target's


def recipe_keys() -> str:
    """Return one row for each key, in the order in which the dataclasses declare them."""
    return "\n".join(["| Key | Type | Default | Meaning |", "|---|---|---|---|", *_rows(Recipe, "")])


def _rows(section: type[Any], prefix: str) -> list[str]:
    meanings = _attributes(section)
    hints = typing.get_type_hints(section)
    lines = []
    for field in dataclasses.fields(section):
        if field.name in _NOT_SHOWN:
            continue
        hint = hints[field.name]
        name = "*" if field.name == "target" else f"{prefix}{field.name}"
        nested = [each for each in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(each)]
        if nested:
            lines += _rows(typing.cast("type[Any]", nested[0]), f"{name}.")
            continue
        meaning = _markdown(meanings[field.name])
        lines.append(f"| `{name}` | {_kind(hint)} | {_default(field)} | {meaning} |")
    return lines


def _attributes(section: type[Any]) -> dict[str, str]:
    """Read the ``Attributes:`` of a docstring."""
    text = inspect.cleandoc(section.__doc__ or "").partition("Attributes:\n")[2]
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", text, re.MULTILINE)
    return {name: " ".join(words.split()) for name, words in entries}


def _kind(hint: Any) -> str:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return " or ".join(_kind(each) for each in typing.get_args(hint))
    if typing.get_origin(hint) is typing.Literal:
        return ", ".join(f"`{each}`" for each in typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        return "list of integers"
    names = {str: "text", int: "integer", float: "number", bool: "true or false", type(None): "none"}
    return names[hint]


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING:
        return "required"
    if field.default is None:
        return "none"
    return f"`{field.default}`".lower() if isinstance(field.default, bool) else f"`{field.default}`"


def _markdown(words: str) -> str:
    return re.sub(r"\bNone\b", "none", words.replace("``", "`").replace("|", "\\|"))
