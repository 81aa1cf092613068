"""Sends responses and events; clients that do not read them are disconnected, so they hold no memory."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web
from pydantic_core import to_json

from pipelines.errors import DraftproofError
from pipelines.front_door.errors import error_body

WRITE_TIMEOUT = web.AppKey("write_timeout_s", float)
"""Longest time in seconds that a client takes no data, in the application."""

_POLL_S = 0.05
_NUM_LOOKS = 4  # at what a client has taken, within the longest time
_RESET = struct.pack("ii", 1, 0)  # linger for 0 s


@contextmanager
def dropped_after(request: web.Request) -> Iterator[None]:
    """Disconnect the client if it takes no data for ``WRITE_TIMEOUT`` while the block sends some.

    Raises:
        ConnectionResetError: It was disconnected.
    """
    watch = _Watch(request)
    try:
        yield
    finally:
        watch.timer.cancel()
    if watch.has_disconnected:
        raise ConnectionResetError("the client takes no data")


async def deliver(request: web.Request, response: web.StreamResponse) -> None:
    """Send a response, or the rest of it, until the operating system has taken all data.

    Otherwise aiohttp would keep the data of a client that has stopped reading for ever.

    Raises:
        ConnectionError: The client has left, or was disconnected.
    """
    with dropped_after(request):
        await response.prepare(request)
        await response.write_eof()
        while request.transport is not None and num_unsent(request.transport):
            await asyncio.sleep(_POLL_S)


def num_unsent(transport: Any) -> int:
    """Return the bytes of a connection that the operating system has not taken."""
    if not hasattr(transport, "_ssl_protocol"):
        return int(transport.get_write_buffer_size())
    # asyncio's TLS sends through a second transport, which it neither counts nor makes public.
    protocol = transport._ssl_protocol
    if protocol is None or protocol._transport is None:
        return 0  # closed
    return int(transport.get_write_buffer_size() + protocol._transport.get_write_buffer_size())


class _Watch:
    """Looks now and then at what a client has taken, and disconnects it if that was nothing for too long.

    Attributes:
        timer: Runs until the next look.
        has_disconnected: Whether the client was disconnected.
    """

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._timeout_s = request.app[WRITE_TIMEOUT]
        self._loop = asyncio.get_running_loop()
        self.has_disconnected = False
        self._num_unsent = 0
        self._taken_s = self._loop.time()
        self.timer = self._next()

    def _next(self) -> asyncio.TimerHandle:
        return self._loop.call_later(self._timeout_s / _NUM_LOOKS, self._look)

    def _look(self) -> None:
        transport = self._request.transport
        if transport is None:
            return
        before, self._num_unsent = self._num_unsent, num_unsent(transport)
        if self._num_unsent < before:
            self._taken_s = self._loop.time()
        if self._loop.time() - self._taken_s < self._timeout_s:
            self.timer = self._next()
        else:
            self.has_disconnected = True
            _disconnect(transport)


def _disconnect(transport: asyncio.Transport) -> None:
    # Otherwise the operating system would go on offering the client what it has taken from us.
    connection = transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    transport.abort()


_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would collect events
}


class EventStream:
    """The events of one response. Its headers are sent with the first one, so errors before have a status.

    A client that takes no data for too long is disconnected.

    Args:
        request: The request that is answered.
    """

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self.response = web.StreamResponse(headers=_HEADERS)

    @property
    def has_begun(self) -> bool:
        """Whether headers have been sent."""
        return self.response.prepared

    async def send(self, *documents: dict[str, Any]) -> None:
        """Send an event for each document, together; those of ``/v1/responses`` have a type."""
        await self._write(b"".join(map(_event, documents)))

    async def fail(self, error: DraftproofError) -> None:
        """Send an error in an event, and OpenAI's last event."""
        await self._write(b"data: " + error_body(error) + b"\n\n")
        await self.done()

    async def done(self) -> None:
        """Send OpenAI's last event."""
        await self._write(b"data: [DONE]\n\n")

    async def _write(self, data: bytes) -> None:
        with dropped_after(self._request):
            if not self.response.prepared:
                await self.response.prepare(self._request)
            await self.response.write(data)


def _event(document: dict[str, Any]) -> bytes:
    name = f"event: {document['type']}\n".encode() if "type" in document else b""
    return name + b"data: " + to_json(document) + b"\n\n"
