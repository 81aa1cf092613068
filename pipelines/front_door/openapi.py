"""Describes the API as an OpenAPI document, from the dataclasses that read the bodies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from pipelines.front_door.requests.fields import IDLE_FIELDS
from pipelines.front_door.requests.sampling import SamplingFields

_PARTS = ("what", "remedy")
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code", *_PARTS],
            "properties": {
                **{name: {"type": "string"} for name in ("message", "type", *_PARTS)},
                **{name: {"type": ["string", "null"]} for name in ("param", "code")},
            },
        }
    },
}


@dataclass(frozen=True)
class Operation:
    """A method of a path.

    Attributes:
        path: The path, with names in braces.
        summary: What it answers.
        body: Dataclass that reads the body of ``POST``; None for others.
        method: The method.
    """

    path: str
    summary: str
    body: type[Any] | None = None
    method: str = "GET"


def openapi_document(operations: Iterable[Operation], *, needs_key: bool) -> dict[str, Any]:
    """Return the document.

    Args:
        operations: All paths.
        needs_key: Whether requests need an API key.
    """
    schemas: dict[str, Any] = {"Error": _ERROR}
    paths: dict[str, Any] = {}
    for operation in operations:
        method = "post" if operation.body else operation.method.lower()
        paths.setdefault(operation.path, {})[method] = _described(operation, schemas)
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "Draftproof",
            "version": "1",
            "description": "OpenAI's API; docs/reference/openai.md",
        },
        "paths": paths,
        "components": {"schemas": schemas},
    }
    if needs_key:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


def _described(operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    error = {"content": _json({"$ref": "#/components/schemas/Error"}), "description": "The request failed"}
    described: dict[str, Any] = {
        "summary": operation.summary,
        "responses": {"200": {"description": "OK"}, "default": error},
    }
    names = [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]
    if names:
        described["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if operation.body is not None:
        schema = TypeAdapter(operation.body).json_schema(ref_template="#/components/schemas/{model}")
        schemas |= schema.pop("$defs", {})
        if issubclass(operation.body, SamplingFields):
            del schema["properties"]["warnings"]  # the reader's
            idle = {name: each.reason for each in IDLE_FIELDS for name in each.names}
            schema["properties"] |= {
                name: {"description": reason}
                for name, reason in idle.items()
                if name not in schema["properties"]
            }
        schemas[operation.body.__name__] = schema
        reference = {"$ref": f"#/components/schemas/{operation.body.__name__}"}
        described["requestBody"] = {"required": True, "content": _json(reference)}
    return described


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
