"""Sends one request to servers of a fleet (the ``Call`` of ``router.failover``)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

from pipelines.errors import (
    ProcessEndedError,
    RequestCancelledError,
    ServerUnavailableError,
)
from pipelines.router.breaker import Outcome
from pipelines.upstreams.fleet.server import FleetServer
from pipelines.wire.chunk import Chunk
from pipelines.wire.chunk_parts import continued
from pipelines.wire.request import CompletionRequest


class FleetCall:
    """One request, and the servers that may answer it.

    Attributes:
        order: Addresses of the servers that may still be asked, in this order.
        servers: The servers by their addresses.
        may_read: Whether chunks are read; not while the client takes none, which would be kept in memory.

    Args:
        request: The request, with a seed.
        order: The servers in the order in which they are asked.
    """

    def __init__(self, request: CompletionRequest, order: Sequence[FleetServer]) -> None:
        self.servers = {server.address: server for server in order}
        self.order = list(self.servers)
        self.may_read = asyncio.Event()
        self.may_read.set()
        self._request = request
        self._given_ids: list[int] = []
        self._last: Chunk | None = None  # the latest chunk that the client has

    def add(self, server: FleetServer) -> None:
        """Let the request ask one more server, after the others."""
        if server.address not in self.servers:
            self.order.append(server.address)
        self.servers[server.address] = server

    async def ask(self, arm: str) -> AsyncGenerator[Chunk, None]:
        """Stream the answer, or its rest; counts of drafting are those of the rest."""
        asked, last = self._request, self._last
        if self._given_ids:
            asked = replace(asked, resume_output_ids=tuple(self._given_ids), return_prompt_log_probs=False)
        async with aclosing(self._stream(arm, asked)) as chunks:
            async for chunk in chunks:
                yield chunk if last is None else continued(chunk, last)

    async def _stream(self, arm: str, request: CompletionRequest) -> AsyncGenerator[Chunk, None]:
        server, last = self.servers[arm], None
        has_begun = bool(request.resume_output_ids)
        try:
            if not server.is_ready:  # it may take long to say so itself
                raise ServerUnavailableError("it did not answer when asked whether it is ready")
            async with aclosing(server.calls.stream(request)) as chunks:
                async for chunk in chunks:
                    await self.may_read.wait()
                    has_begun = True
                    if chunk.finish_reason:
                        last = chunk  # until the stream has ended, because this one is closed then
                    else:
                        yield chunk
        except (ServerUnavailableError, RequestCancelledError) as error:
            # The client would close this stream. An answer that has begun waits for a server.
            kind = ProcessEndedError if has_begun else ServerUnavailableError
            raise kind(
                f"the server does not answer: {arm}: {error.message}", "send the request again"
            ) from None
        if last is not None:
            yield last

    def begin(self, arm: str) -> Callable[[Outcome], None]:
        """Record that a server is asked; the returned function is called once, with the outcome."""
        return self.servers[arm].begin()

    def may_hedge(self, arm: str) -> bool:
        """Whether another server is asked because this one is silent: only if it has stopped answering."""
        return not self.servers[arm].is_ready

    def deliver(self, chunk: Chunk) -> None:
        """Note that the client gets a chunk."""
        self._given_ids += chunk.output_ids
        self._last = chunk
