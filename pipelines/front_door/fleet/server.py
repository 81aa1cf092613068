"""One server of a fleet, as this front door sees it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pipelines.deploy.identity import ServerIdentity
from pipelines.errors import RepositoryError
from pipelines.front_door.router_calls import GatewayCalls
from pipelines.router.breaker import Breaker, Outcome

_LOG = logging.getLogger(__name__)

_MOST_MISSED = 2
"""Looks in a row at which a server that was ready may be silent: one is missed on a busy machine."""


@dataclass(eq=False)
class FleetServer:
    """A server, and what is known of it. Used on one event loop.

    Attributes:
        address: ``host:port`` of its gRPC server.
        calls: Connection to it.
        identity: On what the bits of its answers depend; None before it was asked for the first time.
        is_ready: Whether it takes new requests.
        num_open: Answers that it owes this front door.
        num_failures: Requests that it failed.
    """

    address: str
    calls: GatewayCalls
    identity: ServerIdentity | None = None
    is_ready: bool = False
    num_open: int = 0
    num_failures: int = 0
    _num_missed: int = 0
    _is_readable: bool = True
    _breaker: Breaker = field(init=False)

    def __post_init__(self) -> None:
        self._breaker = Breaker(self.address)

    async def look(self, own: ServerIdentity) -> None:
        """Ask whether it is ready, and what it serves.

        Args:
            own: The pair that this front door serves. A server of another pair is not ready, nor one of
                another version that says what this one cannot read.
        """
        found = await self._ask_identity() if await self.calls.is_ready() else None
        if found is None:
            self._num_missed += 1
            self.is_ready = self.is_ready and self._num_missed < _MOST_MISSED
            return
        self._num_missed = 0
        is_new = self.identity != found
        self.identity = found
        serves_it = (found.pair, found.target_digest) == (own.pair, own.target_digest)
        if serves_it and not self.is_ready:
            self._breaker = Breaker(self.address)  # what failed before it went away says nothing of it now
        if is_new and not serves_it:
            _LOG.warning(
                "%s gets no requests: it serves %s %s, and this front door %s %s",
                *(self.address, found.pair, found.target_digest, own.pair, own.target_digest),
            )
        self.is_ready = serves_it

    async def _ask_identity(self) -> ServerIdentity | None:
        """Ask what it serves; None if it does not answer, or if the answer cannot be read."""
        try:
            found = ServerIdentity.of_extensions(await self.calls.extensions())
        except RepositoryError as error:
            if self._is_readable:
                _LOG.warning("%s gets no requests: %s", self.address, error)
            self._is_readable = False
            return None
        self._is_readable = True
        return found

    def lets_through(self) -> bool:
        """Whether it has not failed too often lately."""
        return self._breaker.lets_through(time.monotonic())

    def answers_as(self, other: FleetServer) -> bool:
        """Whether both give the same answers to the bit."""
        if self.identity is None or other.identity is None:
            return False
        return self.identity.answers_as(other.identity)

    def begin(self) -> Callable[[Outcome], None]:
        """Record that it is asked; the returned function is called once, with the outcome."""
        asked = self._breaker.begin(time.monotonic())
        self.num_open += 1

        def end(outcome: Outcome) -> None:
            self.num_open -= 1
            self.num_failures += outcome in ("error", "timeout")
            asked.note(outcome, time.monotonic())

        return end
