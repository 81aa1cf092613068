"""Reads the response of one server, in pieces that can be passed on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import aiohttp

from pipelines.front_door.requests.body import beside_the_loop
from pipelines.router.observation import unix_time_s
from pipelines.upstreams.answer import Answer
from pipelines.upstreams.request import ForwardedRequest
from pipelines.upstreams.upstream import Fault, Head, Upstream, head_of, name_of

_WHOLE = "application/json"


@dataclass(frozen=True)
class Piece:
    """A piece of a response.

    Attributes:
        head: Status and headers of the response.
        data: Bytes of its body.
        is_last: Whether it is the last one.
        is_cut: Whether the server broke the connection after it.
    """

    head: Head
    data: bytes
    is_last: bool = False
    is_cut: bool = False


class Reading:
    """A request to one server, and what was read of its answer.

    Attributes:
        answer: The answer as far as it came; None without one.
        fault: What went wrong; None if nothing did so far.
        may_read: Whether pieces are read; not while the client takes none, which would be kept in memory.

    Args:
        request: The request.
        upstream: The server.
        may_read: See above.
    """

    def __init__(
        self, request: ForwardedRequest, upstream: Upstream, may_read: asyncio.Event | None = None
    ) -> None:
        self.answer: Answer | None = None
        self.fault: Fault | None = None
        self._request = request
        self._upstream = upstream
        self._may_read = may_read

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """Stream the response from the first token on, or the whole of one that is no stream.

        What goes wrong after the first piece is noted, and its bytes are passed on to the same end.

        Raises:
            EngineFailedError: The server fails before the first piece.
            ServerBusyError: It is asked for too much.
            InvalidRequestError: It refuses the request.
        """
        request, upstream = self._request, self._upstream
        content = await beside_the_loop(len(request.content), request.content_for, upstream.endpoint.model)
        held, is_passing = bytearray(), False
        answer: Answer | None = None
        try:
            async with upstream.send("POST", request.path, content) as response:
                head = head_of(response)
                if response.status != 200:
                    self.fault = await upstream.refusal(response)
                    raise self.fault.error
                is_stream = request.is_stream and response.content_type != _WHOLE
                answer = self.answer = Answer(
                    is_stream=is_stream, clock=unix_time_s, has_items=request.has_items
                )
                async for data in response.content.iter_any():
                    if self._may_read is not None:
                        await self._may_read.wait()
                    await beside_the_loop(len(data) + answer.num_unread, answer.read, data)
                    held += data
                    is_passing = is_passing or (is_stream and answer.has_token and not answer.fault)
                    if is_passing:
                        data, held = bytes(held), bytearray()
                        yield Piece(head, data)
                    elif answer.fault:
                        break
                await beside_the_loop(answer.num_unread, answer.end)
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            name = name_of(error)
            if not is_passing or answer is None:
                self.fault = upstream.failure(name)
                raise self.fault.error from None
            answer.cut(name)
            self._check(answer)
            yield Piece(head, bytes(held), is_last=True, is_cut=True)
            return
        self._check(answer)
        if self.fault is not None and answer.fault and not is_passing:
            raise self.fault.error
        yield Piece(head, bytes(held), is_last=True)

    def _check(self, answer: Answer) -> None:
        name = answer.fault
        if not name and self._upstream.changes_model(str(self._request.body.get("model")), answer.model):
            name = "another model than before"
        if name:
            self.fault = self._upstream.failure(name)
