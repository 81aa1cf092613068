"""Requests whose schemas, grammars and functions are hostile: bodies for OpenAI's endpoints.

Before trials, each of them ended or froze the process that compiled it, or held up all others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Body = dict[str, Any]


def chain_of_references(length: int = 1200) -> dict[str, Any]:
    """Return a schema whose definitions refer to one another: it overflows the stack."""
    definitions: dict[str, Any] = {
        f"d{each}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{each + 1}"}}}
        for each in range(length)
    }
    definitions[f"d{length}"] = {"type": "string"}
    return {"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": definitions}


def chain_of_rules(length: int = 2800) -> str:
    """Return a Lark grammar whose rules refer to one another: it overflows the stack."""
    return "start: r0\n" + "".join(f"r{each}: r{each + 1}\n" for each in range(length)) + f'r{length}: "a"\n'


def patterns_under_all_of(number: int = 24) -> dict[str, Any]:
    """Return a schema that compiles without end (24), or for which one allocation is too large (200)."""
    return {"allOf": [{"type": "string", "pattern": f".*a{each}.*"} for each in range(number)]}


def optional_properties(number: int = 5000) -> dict[str, Any]:
    """Return a schema that compiles for seconds (5,000), or whose masks are slow (1,500)."""
    return {"type": "object", "properties": {f"p{each}": {"type": "string"} for each in range(number)}}


def slow_to_read_function(number: int = 3000) -> dict[str, Any]:
    """Return the parameters of a function whose properties all choose from 199 types."""
    return {
        "type": "object",
        "properties": {f"p{each}": {"anyOf": [{"$ref": "#/$defs/x"}]} for each in range(number)},
        "$defs": {"x": {"anyOf": [{"type": "string", "title": f"t{each}"} for each in range(199)]}},
    }


def words(size: int) -> str:
    """Return a text of this many characters, which the tokenizer cuts into short tokens."""
    return ("word and " * (size // 9 + 1))[:size]


def long_literals() -> str:
    """Return a Lark grammar of literals that are short enough, each, and force a text of 150 KB."""
    return "start: " + " ".join(f'"{words(15_000)}"' for _ in range(10))


def long_literals_behind_a_choice() -> str:
    """Return such a grammar whose first mask is quick."""
    return 'start: ("a" | "b") ' + " ".join(f'"{words(15_000)}"' for _ in range(10))


def many_terminals(number: int = 300) -> str:
    """Return a Lark grammar whose lexer needs many states after few tokens."""
    names = "|".join(f"T{each}" for each in range(number))
    terminals = "\n".join(f"T{each}: /[a-z]{{1,{each % 40 + 2}}}{each}/" for each in range(number))
    return f"start: ({names})*\n{terminals}\n"


def ambiguous() -> str:
    """Return a Lark grammar whose masks take longer with each "a"."""
    return 'start: s\ns: s s s | s s | "a"'


def ranges(number: int = 2500) -> dict[str, Any]:
    """Return a schema that is accepted and takes more than a second to compile."""
    properties = {
        f"a{each}": {"type": "integer", "minimum": each * 7919123, "maximum": (each + 5) * 791912377}
        for each in range(number)
    }
    return {"type": "object", "properties": properties, "required": list(properties)}


def with_schema(schema: dict[str, Any]) -> Body:
    """Return a chat request whose answer follows a schema."""
    form = {"type": "json_schema", "json_schema": {"name": "hostile", "schema": schema}}
    return {"messages": _MESSAGES, "max_tokens": 16, "response_format": form}


def with_tools(*parameters: dict[str, Any]) -> Body:
    """Return a chat request with a function for each schema."""
    functions = [{"name": f"f{number}", "parameters": each} for number, each in enumerate(parameters)]
    tools = [{"type": "function", "function": function} for function in functions]
    return {"messages": _MESSAGES, "max_tokens": 16, "tools": tools}


def with_outputs(kind: str, value: Any) -> Body:
    """Return a completion with ``structured_outputs``: ``json``, ``regex``, ``choice`` or ``grammar``."""
    return {"prompt": "a", "max_tokens": 64, "structured_outputs": {kind: value}}


_MESSAGES = [{"role": "user", "content": "Hello"}]

CHAT: dict[str, Callable[[], Body]] = {
    "1,200 references": lambda: with_schema(chain_of_references()),
    "1,200 references in a function": lambda: with_tools(chain_of_references()),
    "24 patterns": lambda: with_schema(patterns_under_all_of()),
    "200 patterns": lambda: with_schema(patterns_under_all_of(200)),
    "24 patterns in a function": lambda: with_tools(
        {"type": "object", "properties": {"a": patterns_under_all_of()}}
    ),
    "5,000 optional properties": lambda: with_schema(optional_properties()),
    "a const of 250 KB": lambda: with_schema({"const": words(250_000)}),
    "functions that are slow to read": lambda: with_tools(*[slow_to_read_function()] * 5),
}
"""Name -> body for ``/v1/chat/completions``."""

COMPLETIONS: dict[str, Callable[[], Body]] = {
    "2,800 rules": lambda: with_outputs("grammar", chain_of_rules()),
    "24 patterns, structured": lambda: with_outputs("json", patterns_under_all_of()),
    "1,500 optional properties": lambda: with_outputs("json", optional_properties(1500)),
    "a choice of 250 KB": lambda: with_outputs("choice", [words(250_000)]),
    "a regular expression of 250 KB": lambda: with_outputs("regex", words(250_000)),
    "one word of 16 KB": lambda: with_outputs("choice", ["x" * 16_000]),
    "literals of 150 KB": lambda: with_outputs("grammar", long_literals()),
    "literals of 150 KB behind a choice": lambda: with_outputs("grammar", long_literals_behind_a_choice()),
    "an ambiguous grammar": lambda: {
        **with_outputs("grammar", ambiguous()),
        **{"max_tokens": 400, "ignore_eos": True},
    },
    "2,500 ranges of integers": lambda: with_outputs("json", ranges()),
    "300 terminals": lambda: with_outputs("grammar", many_terminals()),
}
"""Name -> body for ``/v1/completions``."""
