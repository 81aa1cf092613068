"""Reads the response of one server, in pieces that can be passed on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import aiohttp

from pipelines.errors import DraftproofError
from pipelines.front_door.requests.body import beside_the_loop
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
        answer: The answer as far as it came.
        fault: What went wrong, which the answer names too; None if nothing did so far.
        may_read: Whether pieces are read; not while the client takes none, which would be kept in memory.

    Args:
        request: The request.
        upstream: The server.
        may_read: See above.
    """

    def __init__(
        self, request: ForwardedRequest, upstream: Upstream, may_read: asyncio.Event | None = None
    ) -> None:
        self.answer = Answer(is_stream=request.is_stream)
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
        try:
            async with upstream.send("POST", request.path, content) as response:
                head = head_of(response)
                if response.status != 200:
                    raise self._failed(await upstream.refusal(response))
                is_stream = request.is_stream and response.content_type != _WHOLE
                answer = self.answer = Answer(is_stream=is_stream, has_items=request.has_items)
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
            failure = self._failed(upstream.failure(self.answer.fault or name_of(error)))
            if not is_passing:
                raise failure from None
            yield Piece(head, bytes(held), is_last=True, is_cut=True)
            return
        if answer.fault:
            failure = self._failed(upstream.failure(answer.fault))
            if not is_passing:
                raise failure
        elif upstream.changes_model(str(request.body.get("model")), answer.model):
            self._failed(upstream.failure("another model than before"))
        yield Piece(head, bytes(held), is_last=True)

    def _failed(self, fault: Fault) -> DraftproofError:
        self.fault = fault
        self.answer.cut(fault.name)
        return fault.error
