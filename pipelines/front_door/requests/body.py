"""Receives bodies: waits for them, decompresses them, and refuses those that take long to parse."""

from __future__ import annotations

import asyncio
import sys
import zlib
from collections.abc import Callable
from typing import Any, TypeVar

from aiohttp import hdrs, web

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

from pipelines.errors import InvalidRequestError
from pipelines.time_limit import within

_QUICK_BYTES = 16 << 10  # take less than a millisecond; larger bodies are read on another thread
_MAX_VALUES = 100_000  # objects, lists and keys; each holds the interpreter up for microseconds
ENCODINGS = ("gzip", "zstd")
"""Compressions of bodies that are taken, one at a time."""

_ZSTD_OPTIONS: dict[int, int] = {
    zstd.DecompressionParameter.window_log_max: 23
}  # RFC 9659: 8 MiB, reserved at once

_Result = TypeVar("_Result")


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
            stream = zlib.decompressobj(zlib.MAX_WBITS | 16)  # of gzip
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
        f"the body is not one whole stream of {encoding} with a window of at most 8 MiB: {reason}",
        "compress it again, or send it as it is",
    )


async def beside_the_loop(num_bytes: int, work: Callable[..., _Result], *arguments: Any) -> _Result:
    """Return the result of a function that reads bytes; many are read on another thread."""
    if num_bytes <= _QUICK_BYTES:
        return work(*arguments)
    return await asyncio.to_thread(work, *arguments)


def check_num_values(content: bytes) -> None:
    """Refuse a body that takes long to parse.

    Raises:
        InvalidRequestError: It has too many objects, lists and keys.
    """
    num_values = sum(map(content.count, (b"{", b"[", b":")))
    if num_values > _MAX_VALUES:
        raise InvalidRequestError(
            f"the body has too many values: {num_values} times one of {{ [ and :, of which {_MAX_VALUES} are "
            "allowed, also inside texts",
            "send fewer or shorter ones",
        )
