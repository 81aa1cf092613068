"""Reads ``response_format`` and vLLM's ``structured_outputs``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from pydantic import JsonValue

from pipelines.errors import InvalidRequestError

GuideParts = tuple[str, str]
"""Type and text of a guide, as ``CompletionRequest.guide``."""

_WHITESPACE = r"[\x20\x0A\x0D\x09]{1,32}"  # as ``text.grammar`` limits it for schemas without Lark
_ESCAPED_OR_SLASH = re.compile(r"\\.|/|\n", re.DOTALL)


def content_guide(
    form: Mapping[str, JsonValue] | None, outputs: Mapping[str, JsonValue] | None
) -> GuideParts | None:
    """Return the guide of an answer's text; None for free text.

    Args:
        form: ``response_format``.
        outputs: ``structured_outputs``.

    Raises:
        InvalidRequestError: Both ask for a form, or one of them is wrong.
    """
    found = guide_of_format(form), guide_of_structured_outputs(outputs)
    if None not in found:
        raise InvalidRequestError("response_format has another form than structured_outputs", "leave one out")
    return found[0] or found[1]


def guide_of_format(form: Mapping[str, JsonValue] | None) -> GuideParts | None:
    """Return the guide of ``response_format``; None for text.

    Args:
        form: ``{"type": "text"}``, ``{"type": "json_object"}``, perhaps with a ``schema``, or ``{"type":
            "json_schema", "json_schema": {"name": ..., "schema": ..., "strict": ...}}``.

    Raises:
        InvalidRequestError: It is none of these.
    """
    kind = "text" if form is None else form.get("type")
    if form is None or kind == "text":
        return None
    if kind == "json_object":
        own = form.get("schema")  # llama.cpp's
        return ("json_schema", enforceable(own, strict=False)) if isinstance(own, dict) else ("json", "")
    inner = form.get("json_schema")
    if kind != "json_schema" or not isinstance(inner, dict) or not isinstance(inner.get("schema"), dict):
        raise InvalidRequestError(
            f"response_format={json.dumps(form):.200} is unknown",
            'send {"type": "text"}, {"type": "json_object"}, or {"type": "json_schema", "json_schema": '
            '{"name": ..., "schema": {...}}}',
        )
    schema = inner["schema"]
    assert isinstance(schema, dict)
    return ("json_schema", enforceable(schema, strict=inner.get("strict") is True))


def guide_of_structured_outputs(outputs: Mapping[str, JsonValue] | None) -> GuideParts | None:
    """Return the guide of vLLM's ``structured_outputs``; None without one.

    Args:
        outputs: One of ``json`` (a schema, as an object or a text), ``json_object``, ``regex``, ``choice`` (a
            list of texts) and ``grammar`` (GBNF if it has ``::=``, else Lark).

    Raises:
        InvalidRequestError: It is none of these.
    """
    given = {name: value for name, value in (outputs or {}).items() if value is not None}
    if not given:
        return None
    name, value = next(iter(given.items()))
    if len(given) == 1:
        if name == "json" and isinstance(value, dict | str):
            return ("json_schema", value if isinstance(value, str) else json.dumps(value))
        if name == "json_object" and value is True:
            return ("json", "")
        if name == "regex" and isinstance(value, str):
            return ("regex", value)
        if name == "choice" and isinstance(value, list):
            return ("choice", json.dumps(value))
        if name == "grammar" and isinstance(value, str):
            return ("ebnf_grammar" if "::=" in value else "lark_grammar", value)
    raise InvalidRequestError(
        f"structured_outputs={json.dumps(given):.200} is unknown",
        "send exactly one of json, json_object, regex, choice and grammar",
    )


def enforceable(schema: Mapping[str, JsonValue], *, strict: bool) -> str:
    """Return a schema as text for a grammar, with what llguidance must know.

    Args:
        schema: The JSON schema.
        strict: Refuse keywords that cannot be enforced, instead of ignoring them.
    """
    own = schema.get("x-guidance")
    options: dict[str, JsonValue] = {"whitespace_pattern": _WHITESPACE, "lenient": not strict}
    if isinstance(own, dict):
        if "whitespace_flexible" in own:
            del options["whitespace_pattern"]
        options.update(own)
    return json.dumps({**schema, "x-guidance": options})


def lark_of(guide: GuideParts) -> str:
    """Return a guide as a rule body of a Lark grammar.

    Raises:
        InvalidRequestError: It is a grammar itself, whose rules could clash.
    """
    kind, text = guide
    if kind == "json":
        return f"%json {enforceable({'type': 'object'}, strict=True)}"
    if kind == "json_schema":
        return f"%json {_with_limited_spaces(text)}"
    if kind == "regex":
        return f"/{_ESCAPED_OR_SLASH.sub(_with_escaped_slash, text)}/"
    if kind == "choice":
        return " | ".join(json.dumps(choice, ensure_ascii=False) for choice in json.loads(text))
    raise InvalidRequestError(
        "structured_outputs.grammar cannot follow thoughts or stand beside tools",
        'send chat_template_kwargs={"enable_thinking": false} and no tools, or a JSON schema',
    )


def _with_escaped_slash(found: re.Match[str]) -> str:
    return {"/": r"\/", "\n": r"\n"}.get(found[0], found[0])


def _with_limited_spaces(text: str) -> str:
    """Return the text of a schema as one line, with limited spaces; other texts as they are."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return enforceable(schema, strict=True) if isinstance(schema, dict) else text
