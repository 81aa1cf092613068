"""Reads JSON bodies into the dataclasses that describe them."""

from __future__ import annotations

import asyncio
import dataclasses
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from aiohttp import hdrs, web
from backports import zstd
from pydantic_core import from_json

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
ENCODINGS = ("gzip", "deflate", "zstd")
"""Compressions of bodies that are taken, one at a time."""

_ZSTD_OPTIONS: dict[int, int] = {
    zstd.DecompressionParameter.window_log_max: 23
}  # RFC 9659: 8 MiB, reserved at once
_ZLIB_HEADS = (b"\x08", b"\x18", b"\x28", b"\x38", b"\x48", b"\x58", b"\x68", b"\x78")

_REMEDY = "send a JSON object with the fields that GET /openapi.json lists"

_TRIALS = GuideTrials()
_WARNING_THREAD = ThreadPoolExecutor(1, thread_name_prefix="warnings")

_Body = TypeVar("_Body")
_Result = TypeVar("_Result")
_Fields = TypeVar("_Fields", bound=SamplingFields)


async def receive_body(request: web.Request, within_s: float) -> bytes:
    """Wait for the body of a request, and decompress it.

    Args:
        request: The request.
        within_s: Longest time until it has arrived.

    Raises:
        HTTPException: It is too large, also decompressed, or in another encoding than ``ENCODINGS``; or it
            did not arrive in time, or broke off.
        InvalidRequestError: It is not what its encoding says.
    """
    encoding = ", ".join(request.headers.getall(hdrs.CONTENT_ENCODING, ())).strip().lower()
    if encoding not in ("", "identity", *ENCODINGS):
        raise web.HTTPUnsupportedMediaType
    try:
        content = await within(within_s, request.read())
    except asyncio.TimeoutError:
        raise web.HTTPRequestTimeout from None
    except web.RequestPayloadError:
        raise web.HTTPBadRequest from None
    if encoding in ("", "identity"):
        return content
    limit = request.client_max_size
    if len(content) <= _QUICK_BYTES:
        return decompressed(content, encoding, limit)
    return await asyncio.to_thread(decompressed, content, encoding, limit)


def decompressed(content: bytes, encoding: str, limit: int) -> bytes:
    """Return a body without its compression, of which no more than the limit is expanded.

    Args:
        content: The body, one stream of its encoding.
        encoding: One of ``ENCODINGS``.
        limit: Most bytes of the result.

    Raises:
        HTTPException: The result is larger.
        InvalidRequestError: The body is damaged, cut off, or has something behind its end.
    """
    stream: zstd.ZstdDecompressor | zlib._Decompress
    try:
        if encoding == "zstd":
            stream = zstd.ZstdDecompressor(options=_ZSTD_OPTIONS)
        else:
            is_bare = encoding == "deflate" and content[:1] not in _ZLIB_HEADS
            stream = zlib.decompressobj(-zlib.MAX_WBITS if is_bare else zlib.MAX_WBITS | 32)
        found = stream.decompress(content, limit + 1)
    except (zlib.error, zstd.ZstdError) as error:
        raise _damaged(encoding, str(error)) from None
    if len(found) > limit:
        raise web.HTTPRequestEntityTooLarge(limit, len(found))
    if not stream.eof or stream.unused_data:
        raise _damaged(encoding, "data behind its end" if stream.eof else "no end")
    return found


def _damaged(encoding: str, reason: str) -> InvalidRequestError:
    return InvalidRequestError(
        "the body cannot be decompressed",
        values=f"Content-Encoding: {encoding}: {reason}",
        limit="one whole stream, with a window of at most 8 MiB",
        remedy="compress it again, or send it as it is",
    )


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


async def beside_the_loop(num_bytes: int, work: Callable[..., _Result], *arguments: Any) -> _Result:
    """Return the result of a function that reads bytes; many are read on another thread."""
    if num_bytes <= _QUICK_BYTES:
        return work(*arguments)
    return await asyncio.to_thread(work, *arguments)


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
        if len(warnings) < MOST_WARNINGS:
            left_out = unenforced_by(calls, each, end_s - time.thread_time())
            warnings += [_warning(f"the function {each.name[:64]}", reason) for reason in left_out]
    return [each for each in body.schemas if len(each[1]) <= MAX_GUIDE_BYTES], warnings


def _warning(place: str, reason: str) -> str:
    return f"the schema of {place} is not enforced whole: {reason}"


def check_num_values(content: bytes) -> None:
    """Refuse a body that takes long to parse.

    Raises:
        InvalidRequestError: It has too many objects, lists and keys.
    """
    num_values = sum(map(content.count, (b"{", b"[", b":")))
    if num_values > _MAX_VALUES:
        raise InvalidRequestError(
            "the body has too many values",
            values=f"{num_values} times one of {{ [ :",
            limit=f"{_MAX_VALUES}, also inside texts",
            remedy="send fewer or shorter ones",
        )


def parse_body(kind: type[_Body], content: bytes) -> _Body:
    """Fill a dataclass from a JSON body; arguments and errors are as for ``read_body``."""
    check_num_values(content)
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
        return configuration.parse(kind, given, InvalidRequestError, remedy)
    settled, warnings = settle(given, {field.name for field in dataclasses.fields(kind)})
    body = configuration.parse(kind, settled, InvalidRequestError, remedy)
    return dataclasses.replace(body, warnings=warnings)
