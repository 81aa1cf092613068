"""Reads JSON bodies into the dataclasses that describe them."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from aiohttp import hdrs, web
from pydantic_core import from_json, to_json

from pipelines import configuration
from pipelines.errors import InvalidRequestError
from pipelines.front_door.messages.arguments import MOST_READING_S, MOST_WARNINGS, unenforced_by
from pipelines.front_door.messages.style import CallStyle
from pipelines.front_door.requests.fields import settle
from pipelines.front_door.requests.sampling import SamplingFields
from pipelines.text.guide_trials import GuideTrials
from pipelines.text.guides import MAX_GUIDE_BYTES
from pipelines.time_limit import within

_QUICK_BYTES = 16 << 10  # take less than a millisecond; larger bodies are read on another thread
_MAX_VALUES = 100_000  # objects, lists and keys; each holds the interpreter up for microseconds
_REMEDY = "send a JSON object with the fields that GET /openapi.json lists"

_TRIALS = GuideTrials()
_WARNING_THREAD = ThreadPoolExecutor(1, thread_name_prefix="warnings")

_Body = TypeVar("_Body")
_Fields = TypeVar("_Fields", bound=SamplingFields)


async def receive_body(request: web.Request, within_s: float) -> bytes:
    """Wait for the body of a request.

    Args:
        request: The request.
        within_s: Longest time until it has arrived.

    Raises:
        HTTPException: It is compressed or too large, did not arrive in time, or broke off.
    """
    if hdrs.CONTENT_ENCODING in request.headers:
        raise web.HTTPUnsupportedMediaType
    try:
        return await within(within_s, request.read())
    except asyncio.TimeoutError:
        raise web.HTTPRequestTimeout from None
    except web.RequestPayloadError:
        raise web.HTTPBadRequest from None


async def read_body(kind: type[_Body], content: bytes, calls: CallStyle | None = None) -> _Body:
    """Fill a dataclass from a JSON body; ``null`` counts as absent.

    Args:
        kind: A dataclass with the decorator ``configuration.strict``.
        content: The body.
        calls: How the model writes tool calls.

    Raises:
        InvalidRequestError: It is not a JSON object, or a field is unknown, missing, wrong or not supported.
    """
    is_quick = len(content) <= _QUICK_BYTES
    body = parse_body(kind, content) if is_quick else await asyncio.to_thread(parse_body, kind, content)
    return await with_warnings(body, calls) if isinstance(body, SamplingFields) else body


async def with_warnings(body: _Fields, calls: CallStyle | None) -> _Fields:
    """Return a request with warnings of what no grammar enforces of its schemas."""
    if next(body.schemas, None) is None:
        return body
    loop = asyncio.get_running_loop()
    schemas, left_out = await loop.run_in_executor(_WARNING_THREAD, _read_schemas, body, calls)
    found: list[list[str]] = []
    if schemas:
        answer = await _TRIALS.ask({"schemas": [schema for _, schema in schemas]}, schemas[0][0])
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
        if len(warnings) < MOST_WARNINGS:
            left_out = unenforced_by(calls, each, end_s - time.thread_time())
            warnings += [_warning(f"the function {each.name[:64]}", reason) for reason in left_out]
    return [each for each in body.schemas if len(each[1]) <= MAX_GUIDE_BYTES], warnings


def _warning(place: str, reason: str) -> str:
    return f"the schema of {place} is not enforced whole: {reason}"


def parse_body(kind: type[_Body], content: bytes) -> _Body:
    """Fill a dataclass from a JSON body; arguments and errors are as for ``read_body``."""
    num_values = sum(map(content.count, (b"{", b"[", b":")))
    if num_values > _MAX_VALUES:
        raise InvalidRequestError(
            "the body has too many values",
            values=f"{num_values} times one of {{ [ :",
            limit=f"{_MAX_VALUES}, also inside texts",
            remedy="send fewer or shorter ones",
        )
    try:
        document = from_json(content, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidRequestError(
            "the body is not JSON", values=str(error), limit="one JSON object in UTF-8", remedy=_REMEDY
        ) from None
    if not isinstance(document, dict):
        raise InvalidRequestError(
            "the body is not a JSON object",
            values=f"{type(document).__name__}: {str(document)[:80]}",
            limit="one JSON object",
            remedy=_REMEDY,
        )
    given = {name: value for name, value in document.items() if value is not None}
    remedy = "correct it; GET /openapi.json lists the fields"
    if not issubclass(kind, SamplingFields):
        return configuration.parse_json(kind, to_json(given), InvalidRequestError, remedy)
    settled, warnings = settle(given, {field.name for field in dataclasses.fields(kind)})
    body = configuration.parse_json(kind, to_json(settled), InvalidRequestError, remedy)
    return dataclasses.replace(body, warnings=warnings)
