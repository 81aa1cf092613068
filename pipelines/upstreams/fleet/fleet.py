"""Answers requests with several servers of the same pair."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from pipelines.deploy.identity import ServerIdentity
from pipelines.errors import InvalidRequestError, ServerStartError, ServerUnavailableError
from pipelines.front_door.served_model import ServedModel
from pipelines.router.failover import answer_over
from pipelines.upstreams.fleet.addresses import Addresses
from pipelines.upstreams.fleet.fleet_call import FleetCall
from pipelines.upstreams.fleet.placement import placed
from pipelines.upstreams.fleet.server import FleetServer, GatewayCalls
from pipelines.wire.chunk import Chunk
from pipelines.wire.request import CompletionRequest

_LOG = logging.getLogger(__name__)

LOOK_INTERVAL_S = 0.5
_FIND_INTERVAL_S = 2.0
_SLOW_AFTER_S = 1.0
"""Time without a token after which it counts whether the server still answers looks."""


class Fleet(Collector):
    """The servers of a fleet, in the place of the connection to one (``RouterCalls``).

    Attributes:
        servers: The servers by their addresses; those that appear and vanish in DNS come and go.
        num_resumed: Answers that another server continued.

    Args:
        addresses: Finds the servers.
        model: The model that they serve.
        own: The pair that this front door serves.
        prefix_tokens: Prompts whose first so many tokens are equal go to the same server.
        timeout_s: Longest time of an answer in seconds; None for as long as a server works on it.
        find_interval_s: Time between two searches for servers.
    """

    def __init__(
        self,
        addresses: Addresses,
        model: ServedModel,
        own: ServerIdentity,
        prefix_tokens: int,
        timeout_s: float | None = None,
        find_interval_s: float = _FIND_INTERVAL_S,
    ) -> None:
        self.num_resumed = 0
        self.servers: dict[str, FleetServer] = {}
        self._addresses = addresses
        self._max_requests = model.max_requests
        self._own = own
        self._prefix_tokens = prefix_tokens
        self._timeout_s = timeout_s
        self._find_interval_s = find_interval_s
        self._open: set[FleetCall] = set()
        self._leaving: list[FleetServer] = []
        self._looking: dict[FleetServer, asyncio.Task[None]] = {}
        self._finding: asyncio.Task[None] | None = None

    @property
    def max_requests(self) -> int:
        """Most answers of one request."""
        return self._max_requests * max(1, len(self.servers))

    async def begin(self) -> None:
        """Find and look at all servers, and from then on look at each of them twice a second.

        Raises:
            ServerStartError: A server that answers serves another pair. One that comes later is left out.
        """
        self._add(await self._addresses.now())
        await asyncio.gather(*(server.look(self._own) for server in self.servers.values()))
        for server in self.servers.values():
            found = server.identity
            if found is not None and not server.is_ready:
                raise ServerStartError(
                    "the servers of the fleet serve different pairs: "
                    f"{server.address} {found.pair} {found.target_digest}, and this front door "
                    f"{self._own.pair} {self._own.target_digest}",
                    "give all of them the same engines, or leave the server out of the fleet",
                )
        for server in self.servers.values():
            self._watch(server)
        if self._addresses.may_change:
            self._finding = asyncio.create_task(self._follow())

    async def close(self) -> None:
        """Close all connections, which cancels open requests."""
        tasks = [*self._looking.values(), *([self._finding] if self._finding else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(server.calls.close() for server in (*self.servers.values(), *self._leaving)))

    def collect(self) -> Iterator[Metric]:
        """Yield metrics by server, and of the whole fleet."""
        labels = ("server",)
        ready = GaugeMetricFamily(
            "draftproof_fleet_server_ready", "Whether a server of the fleet takes requests", labels=labels
        )
        open_answers = GaugeMetricFamily(
            "draftproof_fleet_server_open_answers", "Answers that a server of the fleet owes", labels=labels
        )
        failures = CounterMetricFamily(
            "draftproof_fleet_server_failures", "Requests that a server of the fleet failed", labels=labels
        )
        for address, server in self.servers.items():
            ready.add_metric((address,), server.is_ready)
            open_answers.add_metric((address,), server.num_open)
            failures.add_metric((address,), server.num_failures)
        yield from (ready, open_answers, failures)
        yield CounterMetricFamily(
            "draftproof_fleet_continued_answers",
            "Answers that another server of the fleet continued",
            value=self.num_resumed,
        )

    async def is_ready(self) -> bool:
        """Return whether any server is ready."""
        return any(server.is_ready for server in self.servers.values())

    async def stream(
        self, request: CompletionRequest, *, streaming: bool = True
    ) -> AsyncGenerator[Chunk, None]:
        """Send one request and stream its chunks, from as many servers as it takes.

        Args:
            request: The request.
            streaming: Means nothing here: what a server has said is continued by another one in any case.

        Raises:
            DraftproofError: It names an arm, a server refused it, or no server answers.
        """
        if request.arm:
            raise InvalidRequestError(
                f"a front door of several servers cannot choose the arm: arm={request.arm!r:.100}",
                "leave it out, or ask one of the servers itself",
            )
        order = placed(list(self.servers.values()), request, self._prefix_tokens)
        if not order:
            raise ServerUnavailableError("no server of the fleet answers", "send the request again later")
        asked = FleetCall(request, order)
        speakers: list[FleetServer] = []
        self._open.add(asked)
        try:
            async with aclosing(answer_over(asked.order, asked, asked.begin, _SLOW_AFTER_S)) as answered:
                async for address, chunk in answered:
                    if not speakers or address != speakers[-1].address:
                        self._note_speaker(speakers, asked.servers[address])
                    if chunk.finish_reason and not _is_exact(speakers):
                        chunk = replace(chunk, continued_elsewhere=True)
                    asked.may_read.clear()
                    yield chunk
                    asked.may_read.set()
        finally:
            self._open.discard(asked)

    def _note_speaker(self, speakers: list[FleetServer], server: FleetServer) -> None:
        if speakers:
            self.num_resumed += 1
            _LOG.warning("%s continues an answer of %s", server.address, speakers[-1].address)
        speakers.append(server)

    def _add(self, addresses: Iterable[str]) -> list[FleetServer]:
        added = [
            FleetServer(address, GatewayCalls(address, self._timeout_s))
            for address in addresses
            if address not in self.servers
        ]
        self.servers.update((server.address, server) for server in added)
        return added

    def _watch(self, server: FleetServer) -> None:
        self._looking[server] = asyncio.create_task(self._look_at(server))

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(self._find_interval_s)
            try:
                await self._find()
            except Exception:
                _LOG.exception("the servers of the fleet cannot be searched for")

    async def _find(self) -> None:
        """Add servers that appear, also to requests that are being answered, and let others go."""
        addresses = await self._addresses.now()
        for address in self.servers.keys() - set(addresses):
            _LOG.warning("%s has left the fleet", address)
            self._leaving.append(self.servers.pop(address))
        for server in self._add(addresses):
            _LOG.warning("%s has joined the fleet", server.address)
            self._watch(server)
            for asked in self._open:
                asked.add(server)
        for server in [each for each in self._leaving if not each.num_open]:
            self._leaving.remove(server)
            server.is_ready = False  # requests that know it do not ask it any more
            self._looking.pop(server).cancel()
            await server.calls.close()

    async def _look_at(self, server: FleetServer) -> None:
        while True:
            was_ready = server.is_ready
            try:
                await server.look(self._own)
            except Exception:
                _LOG.exception("%s cannot be looked at", server.address)
                server.is_ready = False
            if server.is_ready != was_ready:
                _LOG.warning("%s is %s", server.address, "ready" if server.is_ready else "not ready")
            await asyncio.sleep(LOOK_INTERVAL_S)


def _is_exact(speakers: Sequence[FleetServer]) -> bool:
    return all(other.answers_as(speakers[0]) for other in speakers[1:])
