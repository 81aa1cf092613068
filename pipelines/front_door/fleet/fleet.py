"""Answers requests with several servers of the same pair."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from pipelines.client.generation import Chunk
from pipelines.client.request import CompletionRequest
from pipelines.client.timeouts import Timeouts
from pipelines.deploy.identity import ServerIdentity
from pipelines.errors import ServerStartError, ServerUnavailableError
from pipelines.front_door.fleet.chunks import joined
from pipelines.front_door.fleet.fleet_call import FleetCall
from pipelines.front_door.fleet.placement import key_of, servers_in_order
from pipelines.front_door.fleet.retry_budget import RetryBudget
from pipelines.front_door.fleet.server import FleetServer
from pipelines.front_door.router_calls import GatewayCalls, all_of
from pipelines.front_door.served_model import ServedModel
from pipelines.router.failover import answer_over

_LOG = logging.getLogger(__name__)

_LOOK_INTERVAL_S = 0.5
_ANSWERS_WITHIN_S = 1.0
_SLOW_AFTER_S = 1.0
"""Time without a token after which it counts whether the server still answers looks."""


class Fleet:
    """The servers of a fleet, in the place of the connection to one (``RouterCalls``).

    Attributes:
        max_requests: Most answers of one request.
        servers: The servers.
        num_resumed: Answers that another server continued.

    Args:
        addresses: ``host:port`` of each server.
        model: The model that they serve.
        own: The pair that this front door serves.
    """

    def __init__(self, addresses: Sequence[str], model: ServedModel, own: ServerIdentity) -> None:
        timeouts = Timeouts(connect_s=_ANSWERS_WITHIN_S)
        self.max_requests = model.max_requests * len(addresses)
        self.num_resumed = 0
        self.servers = {
            address: FleetServer(address, GatewayCalls(address, timeouts, model.max_requests))
            for address in addresses
        }
        self._own = own
        self._vocabulary = model.tokenizer.vocabulary
        self._budget = RetryBudget()
        self._looking: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        """Look at all servers, and from then on at each of them twice a second.

        Raises:
            ServerStartError: A server that answers serves another pair. One that comes later is left out.
        """
        await asyncio.gather(*(server.look(self._own) for server in self.servers.values()))
        for server in self.servers.values():
            found = server.identity
            if found is not None and not server.is_ready:
                raise ServerStartError(
                    "the servers of the fleet serve different pairs",
                    values=f"{server.address}: {found.pair} {found.target_digest}",
                    limit=f"{self._own.pair} {self._own.target_digest}, as this front door",
                    remedy="give all of them the same engines, or leave the server out of 'servers'",
                )
        self._looking = [asyncio.create_task(self._watch(each)) for each in self.servers.values()]

    async def close(self) -> None:
        """Close all connections, which cancels open requests."""
        for task in self._looking:
            task.cancel()
        await asyncio.gather(*self._looking, return_exceptions=True)
        await asyncio.gather(*(server.calls.close() for server in self.servers.values()))

    async def is_ready(self) -> bool:
        """Return whether any server is ready."""
        return any(server.is_ready for server in self.servers.values())

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Chunk, None]:
        """Send one request and stream its chunks, from as many servers as it takes.

        Raises:
            DraftproofError: A server refused it, or no server answers.
        """
        order = servers_in_order(list(self.servers.values()), key_of(request))
        if not order:
            raise ServerUnavailableError(
                "no server of the fleet answers",
                values=f"{len(self.servers)} servers: {', '.join(self.servers)}",
                limit="at least one must be ready",
                remedy="send the request again later",
            )
        self._budget.note_request()
        asked = FleetCall(request, self.servers, self._budget, self._vocabulary)
        addresses = [server.address for server in order]
        speakers: list[str] = []
        async with aclosing(answer_over(addresses, asked, _SLOW_AFTER_S, resumes=True)) as answered:
            async for address, chunk in answered:
                if address not in speakers[-1:]:
                    self._note_speaker(speakers, address)
                if chunk.finish_reason and not self._is_exact(speakers):
                    chunk = replace(chunk, continued_elsewhere=True)
                asked.may_read.clear()
                yield chunk
                asked.may_read.set()

    async def generate_all(self, requests: Sequence[CompletionRequest]) -> list[Chunk]:
        """Answer requests concurrently, each in one chunk; the first error cancels the others.

        Raises:
            DraftproofError: As for ``stream``.
        """
        return await all_of(map(self._generate, requests))

    async def _generate(self, request: CompletionRequest) -> Chunk:
        async with aclosing(self.stream(request)) as chunks:
            return joined([chunk async for chunk in chunks])

    def _note_speaker(self, speakers: list[str], address: str) -> None:
        if speakers:
            self.num_resumed += 1
            _LOG.warning("%s continues an answer of %s", address, speakers[-1])
        speakers.append(address)

    def _is_exact(self, speakers: Sequence[str]) -> bool:
        first, *others = (self.servers[address] for address in speakers)
        return all(other.answers_as(first) for other in others)

    async def _watch(self, server: FleetServer) -> None:
        while True:
            await asyncio.sleep(_LOOK_INTERVAL_S)
            was_ready = server.is_ready
            try:
                await server.look(self._own)
            except Exception:
                _LOG.exception("%s cannot be looked at", server.address)
                server.is_ready = False
            if server.is_ready != was_ready:
                _LOG.warning("%s is %s", server.address, "ready" if server.is_ready else "not ready")
