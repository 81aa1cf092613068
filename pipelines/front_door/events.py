"""Writes an answer as server-sent events."""

from __future__ import annotations

from typing import Any

from aiohttp import web
from pydantic_core import to_json

from pipelines.errors import DraftproofError
from pipelines.front_door.delivery import dropped_after
from pipelines.front_door.errors import error_body

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
