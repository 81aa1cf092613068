"""Fills the dataclasses that describe requests from JSON bodies.

``fields.yaml`` lists the fields of OpenAI's and vLLM's requests that mean nothing here, unless a request
declares them itself. A value that changes nothing is accepted; another one is refused with the reason,
because what it asks for would not be done. ``docs/reference/openai.md`` shows the table.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import JsonValue
from pydantic_core import from_json, to_json

from pipelines import configuration
from pipelines.errors import InternalError, InvalidRequestError
from pipelines.front_door.messages.call_styles.call_style import MOST_READING_S, CallStyle
from pipelines.front_door.messages.schemas import MOST_WARNINGS
from pipelines.front_door.requests.body import beside_the_loop, check_num_values
from pipelines.front_door.requests.sampling import SamplingFields
from pipelines.text.guide_trials import GuideTrials
from pipelines.text.guides import MAX_GUIDE_BYTES

_REMEDY = "send a JSON object with the fields that docs/reference/openai.md lists"

_IDLE_TOOL_KEYS = frozenset(
    {"cache_control", "defer_loading", "allowed_callers", "output_schema", "async", "eager_input_streaming"}
)


@dataclass(frozen=True)
class IdleField:
    """Fields that mean nothing here.

    Attributes:
        names: Their names.
        reason: Why the answer does not depend on them.
        accepted: The values that are accepted; None for all.
        remedy: What to send instead.
    """

    names: tuple[str, ...]
    reason: str
    accepted: tuple[JsonValue, ...] | None = None
    remedy: str = "leave it out"

    def check(self, name: str, value: JsonValue) -> None:
        """Refuse a value that is not accepted.

        Raises:
            InvalidRequestError: The value asks for something that is not done.
        """
        if self.accepted is None or value in self.accepted:
            return
        values = " or ".join(to_json(each).decode() for each in self.accepted)
        allowed = f", unless it is {values}" if values else ""
        raise InvalidRequestError(
            f"{name}={value!r:.200} is not supported{allowed}, because {self.reason}", self.remedy
        )


@configuration.strict
@dataclass(frozen=True)
class _Table:
    fields: tuple[IdleField, ...]


IDLE_FIELDS = configuration.read_yaml(
    _Table, Path(__file__).with_suffix(".yaml"), InternalError, "restore the file"
).fields
"""The table of ``fields.yaml``."""

_BY_NAME = {name: idle for idle in IDLE_FIELDS for name in idle.names}

_TRIALS = GuideTrials()
_WARNING_THREAD = ThreadPoolExecutor(1, thread_name_prefix="warnings")

_Body = TypeVar("_Body")
_Fields = TypeVar("_Fields", bound=SamplingFields)


async def read_body(kind: type[_Body], content: bytes, calls: CallStyle | None = None) -> _Body:
    """Fill a dataclass from a JSON body; ``null`` counts as absent.

    Args:
        kind: A dataclass with the decorator ``configuration.strict``.
        content: The body.
        calls: How the model writes tool calls.

    Raises:
        InvalidRequestError: It is not a JSON object, or a field is unknown, missing, wrong or not supported.
    """
    body: Any = await beside_the_loop(len(content), parse_body, kind, content)
    if isinstance(body, SamplingFields):
        body = await with_warnings(body, calls)
    read: _Body = body
    return read


def parse_body(kind: type[_Body], content: bytes) -> _Body:
    """Fill a dataclass from a JSON body; arguments and errors are as for ``read_body``."""
    check_num_values(content)
    try:
        document = from_json(content, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidRequestError(f"the body is not JSON in UTF-8: {error}", _REMEDY) from None
    if not isinstance(document, dict):
        found = f"{type(document).__name__}: {str(document)[:80]}"
        raise InvalidRequestError(f"the body is not a JSON object: {found}", _REMEDY)
    given = {name: value for name, value in document.items() if value is not None}
    remedy = "correct it; docs/reference/openai.md lists the fields"
    if not issubclass(kind, SamplingFields):
        return configuration.parse(kind, given, InvalidRequestError, remedy)
    settled, warnings = settle(given, {field.name for field in dataclasses.fields(kind)})
    body = configuration.parse(kind, settled, InvalidRequestError, remedy)
    return dataclasses.replace(body, warnings=warnings)


def settle(
    document: Mapping[str, JsonValue], declared: Collection[str]
) -> tuple[dict[str, JsonValue], tuple[str, ...]]:
    """Return the fields of a request that mean something, and warnings of what is left out.

    Args:
        document: The request.
        declared: Fields that it has itself.

    Raises:
        InvalidRequestError: A field asks for something that is not done.
    """
    settled = {}
    for name, value in document.items():
        if name in declared or name not in _BY_NAME:
            settled[name] = value
        else:
            _BY_NAME[name].check(name, value)
    tools = settled.get("tools")
    if not isinstance(tools, list):
        return settled, ()
    others = {kind for tool in tools if (kind := _kind(tool)) != "function"}
    settled["tools"] = [_without_idle_keys(tool) for tool in tools if _kind(tool) == "function"]
    if not others:
        return settled, ()
    kinds = ", ".join(sorted(others))[:200]
    return settled, (f"tools of type {kinds} were left out: the model calls functions only",)


def _kind(tool: Any) -> str:
    """Return the type of a tool; what is none is refused later, as a function."""
    kind = tool.get("type", "function") if isinstance(tool, dict) else "function"
    return kind if isinstance(kind, str) else "function"


def _without_idle_keys(tool: Any) -> Any:
    if not isinstance(tool, dict):
        return tool
    return {
        key: _without_idle_keys(value) if key == "function" else value
        for key, value in tool.items()
        if key not in _IDLE_TOOL_KEYS
    }


async def with_warnings(body: _Fields, calls: CallStyle | None) -> _Fields:
    """Return a request with warnings of what no grammar enforces of its schemas."""
    if next(body.schemas, None) is None:
        return body
    loop = asyncio.get_running_loop()
    schemas, left_out = await loop.run_in_executor(_WARNING_THREAD, _read_schemas, body, calls)
    found: list[list[str]] = []
    if schemas:
        places, texts = zip(*schemas, strict=True)
        answer = await _TRIALS.ask({"schemas": texts}, *places)
        found = answer["warnings"]
    of_form = [
        _warning(place, reason)
        for (place, _), reasons in zip(schemas, found, strict=True)
        for reason in reasons
    ]
    return dataclasses.replace(body, warnings=(*body.warnings, *of_form, *left_out)[:MOST_WARNINGS])


def _read_schemas(body: SamplingFields, calls: CallStyle | None) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the schemas that are tried, and warnings of functions."""
    warnings: list[str] = []
    end_s = time.thread_time() + MOST_READING_S
    for each in body.functions:
        if calls is not None and len(warnings) < MOST_WARNINGS:
            left_out = calls.unenforced(each, end_s - time.thread_time())
            warnings += [_warning(f"the function {each.name[:64]}", reason) for reason in left_out]
    return [each for each in body.schemas if len(each[1]) <= MAX_GUIDE_BYTES], warnings


def _warning(place: str, reason: str) -> str:
    return f"the schema of {place} is not enforced whole: {reason}"
