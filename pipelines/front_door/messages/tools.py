"""The tools of a request, and which of them its answer may call."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import JsonValue

from pipelines.errors import InvalidRequestError
from pipelines.front_door.messages.answer_format import enforceable

NAME = r"[A-Za-z0-9_.:/-]{1,64}"
"""Names of functions: OpenAI's, and the dots, colons and slashes of MCP servers."""

_NO_PARAMETERS: dict[str, JsonValue] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, kw_only=True)
class Function:
    """A function that the model may call.

    Attributes:
        name: Its name.
        description: What it does.
        parameters: JSON schema of the object with its arguments; None for a function without.
        strict: Refuse a schema that cannot be enforced whole, instead of ignoring keywords.
    """

    name: str
    description: str | None = None
    parameters: dict[str, JsonValue] | None = None
    strict: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Tool:
    """An entry of ``tools``."""

    type: Literal["function"] = "function"
    function: Function


@dataclass(frozen=True)
class Calling:
    """The functions that an answer may call.

    Attributes:
        functions: The functions.
        mode: Whether the answer has no call, may have some, or must have one.
        is_parallel: Whether it may have several.
    """

    functions: tuple[Function, ...]
    mode: Literal["none", "auto", "required"]
    is_parallel: bool = True


def calling_of(
    functions: Sequence[Function], choice: JsonValue, parallel_tool_calls: bool | None
) -> Calling | None:
    """Return what ``tools``, ``tool_choice`` and ``parallel_tool_calls`` mean; None without tools.

    Args:
        functions: The functions of ``tools``.
        choice: ``tool_choice``: "none", "auto", "required", or an object of type ``function`` or
            ``allowed_tools`` that names functions.
        parallel_tool_calls: None for OpenAI's default, true.

    Raises:
        InvalidRequestError: A function has a wrong name or schema, or the choice is none of these.
    """
    is_parallel = parallel_tool_calls is not False
    if not functions:
        if choice in (None, "none", "auto"):
            return None
        raise wrong_choice(choice, "none or auto, or tools")
    known = _by_name(functions)
    if choice is None or choice == "auto":
        return Calling(tuple(functions), "auto", is_parallel)
    if choice == "none":
        return Calling(tuple(functions), "none")
    if choice == "required":
        return Calling(tuple(functions), "required", is_parallel)
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        return _allowed(known, choice, is_parallel)
    return Calling((_named_by(choice, known, choice),), "required", is_parallel=False)


def tools_for_template(functions: Sequence[Function]) -> list[dict[str, Any]]:
    """Return the tools as chat templates write them into the prompt."""
    return [
        {
            "type": "function",
            "function": {
                "name": function.name,
                **({} if function.description is None else {"description": function.description}),
                "parameters": parameters_of(function),
            },
        }
        for function in functions
    ]


def parameters_of(function: Function) -> dict[str, JsonValue]:
    """Return the JSON schema of the arguments of a function."""
    return _NO_PARAMETERS if function.parameters is None else function.parameters


def schema_of(function: Function) -> str:
    """Return the schema of a function's arguments as its grammar has it."""
    return enforceable({"type": "object", **parameters_of(function)}, strict=function.strict is True)


def _allowed(known: Mapping[str, Function], choice: dict[str, JsonValue], is_parallel: bool) -> Calling:
    """Return what a choice of some of the tools means; that of ``/v1/responses`` is not nested."""
    allowed = choice.get("allowed_tools", choice)
    mode = allowed.get("mode") if isinstance(allowed, dict) else None
    tools = allowed.get("tools") if isinstance(allowed, dict) else None
    if mode not in ("auto", "required") or not isinstance(tools, list) or not tools:
        raise wrong_choice(choice, 'allowed_tools with a mode, "auto" or "required", and a list of tools')
    named = {_named_by(tool, known, choice).name for tool in tools}
    allowed_functions = tuple(each for each in known.values() if each.name in named)
    return Calling(allowed_functions, "auto" if mode == "auto" else "required", is_parallel)


def _named_by(reference: JsonValue, known: Mapping[str, Function], choice: JsonValue) -> Function:
    """Return the function that an object names; its name in ``/v1/responses`` is not nested.

    Raises:
        InvalidRequestError: It names none of the functions.
    """
    name: JsonValue = None
    if isinstance(reference, dict) and reference.get("type") == "function":
        nested = reference.get("function")
        name = nested.get("name") if isinstance(nested, dict) else reference.get("name")
    if isinstance(name, str) and name in known:
        return known[name]
    raise wrong_choice(
        choice, f"none, auto, required, or an object that names some of {', '.join(known)}"[:300]
    )


def _by_name(functions: Sequence[Function]) -> dict[str, Function]:
    """Return functions by their names, which differ.

    Raises:
        InvalidRequestError: A function has a wrong name or schema.
    """
    known: dict[str, Function] = {}
    for number, function in enumerate(functions):
        place = f"tools[{number}].function"
        if not re.fullmatch(NAME, function.name):
            raise InvalidRequestError(
                f"{place}.name={function.name[:100]!r} is not 1 to 64 ASCII letters, digits and _ - . : /",
                "rename the function",
            )
        if function.name in known:
            raise InvalidRequestError(
                f"{place}.name={function.name!r} is the name of two functions", "rename one of them"
            )
        if (kind := parameters_of(function).get("type", "object")) != "object":
            raise InvalidRequestError(
                f'{place}.parameters.type={kind!r:.100} is not "object"',
                "put the parameter into an object's properties",
            )
        known[function.name] = function
    return known


def wrong_choice(choice: JsonValue, possible: str) -> InvalidRequestError:
    """Return the error of a ``tool_choice`` that is none of the possible ones."""
    return InvalidRequestError(f"tool_choice={choice!r:.200} cannot be followed", f"send {possible}")
