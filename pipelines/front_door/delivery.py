"""Sends responses and events, and waits until they are on their way.

A client that takes no data is disconnected by the operating system (``FrontDoorSettings.listen``), which ends
every wait here.
"""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

from aiohttp import web
from pydantic_core import to_json

from pipelines.errors import DraftproofError
from pipelines.front_door.errors import error_body, is_anthropics

QUIET_S = 30.0
"""Longest silence of a stream, seconds. Proxies often end one after 60, fetch of Node.js after 300."""

_POLL_S = 0.05


async def deliver(request: web.Request, response: web.StreamResponse) -> None:
    """Send a response, or the rest of it, until the operating system has taken all data.

    Raises:
        ConnectionError: The client has left, or was disconnected.
    """
    await response.prepare(request)
    await response.write_eof()
    while request.transport is not None and _has_unsent(request.transport):
        await asyncio.sleep(_POLL_S)


def _has_unsent(transport: asyncio.Transport) -> bool:
    """Return whether data of a connection wait for the operating system, or the connection is about to end.

    TLS sends through a second transport, which is not public. It keeps data only while the socket takes none.
    """
    if transport.is_closing() or transport.get_write_buffer_size():
        return True
    descriptor = transport.get_extra_info("socket").fileno()
    writable = select.poll()
    writable.register(descriptor, select.POLLOUT)
    return writable.poll(0) != [(descriptor, select.POLLOUT)]


_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would collect events
}


class EventStream:
    """The events of one response. Its headers are sent with the first one, so errors before have a status.

    Args:
        request: The request that is answered.
    """

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._sending = asyncio.Lock()
        self._sent_at_s = time.monotonic()
        self.response = web.StreamResponse(headers=_HEADERS)

    @property
    def has_begun(self) -> bool:
        """Whether headers have been sent."""
        return self.response.prepared

    @asynccontextmanager
    async def kept_alive(self, sign: Callable[[], Iterable[dict[str, Any]]]) -> AsyncIterator[None]:
        """Give a sign of life after each ``QUIET_S`` without an event, such as while a prompt is computed.

        Args:
            sign: Returns its events; none stand for a comment.
        """
        signs = asyncio.create_task(self._send_signs(sign))
        try:
            yield
        finally:
            async with self._sending:  # a sign that has begun is sent whole
                signs.cancel()

    async def send(self, *documents: dict[str, Any]) -> None:
        """Send an event for each document, together; those with a type are named by it."""
        await self._write(b"".join(map(_event, documents)))

    async def fail(self, error: DraftproofError) -> None:
        """Send an error in an event, and the last event."""
        name = b"event: error\n" if is_anthropics(self._request) else b""
        await self._write(name + b"data: " + error_body(error, self._request) + b"\n\n")
        await self.done()

    async def done(self) -> None:
        """Send OpenAI's last event; Anthropic's API has none."""
        if not is_anthropics(self._request):
            await self._write(b"data: [DONE]\n\n")

    async def _send_signs(self, sign: Callable[[], Iterable[dict[str, Any]]]) -> None:
        with suppress(ConnectionError):
            while True:
                await asyncio.sleep(self._sent_at_s + QUIET_S - time.monotonic())
                async with self._sending:  # whoever wrote meanwhile was a sign of life, too
                    if time.monotonic() >= self._sent_at_s + QUIET_S:
                        await self._put(b"".join(map(_event, sign())) or b":\n\n")

    async def _write(self, data: bytes) -> None:
        async with self._sending:
            await self._put(data)

    async def _put(self, data: bytes) -> None:
        if not self.response.prepared:
            await self.response.prepare(self._request)
        await self.response.write(data)
        self._sent_at_s = time.monotonic()


def _event(document: dict[str, Any]) -> bytes:
    name = f"event: {document['type']}\n".encode() if "type" in document else b""
    return name + b"data: " + to_json(document) + b"\n\n"
