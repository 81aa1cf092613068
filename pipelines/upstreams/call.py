"""Sends one request to servers and passes their bytes on (the ``RoutedCall`` of ``router.routing``).

Another server takes over as long as the client has nothing: until the first token of a stream, and until the
end of an answer in one piece. After that, what went wrong is recorded, and the client gets the same bytes as
from the server itself, to the same end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace

from pipelines.errors import (
    DraftproofError,
    EngineFailedError,
    InvalidRequestError,
    RequestCancelledError,
    TransportError,
)
from pipelines.router.arms import Arm, ArmTable
from pipelines.router.observation import FallbackReason, Observation
from pipelines.router.received_answer import with_answer
from pipelines.time_limit import within
from pipelines.upstreams.answer import Answer
from pipelines.upstreams.reading import Piece, Reading
from pipelines.upstreams.request import ForwardedRequest
from pipelines.upstreams.upstream import Fault, Upstream

_MOST_TIMES = 10.0
"""A replay may take so many times as long as the answer that the client got."""


class UpstreamCall:
    """One request, and the servers that may answer it.

    Attributes:
        may_read: Whether pieces are read; not while the client takes none, which would be kept in memory.

    Args:
        request: The request.
        servers: The servers by their names.
        table: The table of arms, whose sockets are names of servers.
    """

    def __init__(self, request: ForwardedRequest, servers: Mapping[str, Upstream], table: ArmTable) -> None:
        self.may_read = asyncio.Event()
        self.may_read.set()
        self._request = request
        self._servers = servers
        self._table = table
        self._readings: dict[Arm, Reading] = {}
        self._has_begun = False  # the client has a piece, so no other arm is asked
        self._lasted_s = 0.0

    def ask(self, arm: Arm) -> AsyncGenerator[Piece, None]:
        """Stream the response from its start: nothing tells where bytes of one server end in another's.

        Raises:
            TransportError: The client has a part of another response.
            DraftproofError: As ``Reading.pieces``.
        """
        if self._has_begun:
            raise TransportError(f"{arm} cannot continue another server's answer", "send the request again")
        reading = self._readings[arm] = Reading(self._request, self._server(self._table, arm), self.may_read)
        return self._only_once(reading) if self._request.has_effects else reading.pieces()

    async def _only_once(self, reading: Reading) -> AsyncGenerator[Piece, None]:
        """Stream a response; where the server may have begun and failed, no other one is asked.

        Raises:
            RequestCancelledError: So that no other server is asked. Its cause is the server's error.
            DraftproofError: As ``Reading.pieces``.
        """
        try:
            async with aclosing(reading.pieces()) as pieces:
                async for piece in pieces:
                    yield piece
        except EngineFailedError as error:
            if reading.fault is None or not reading.fault.may_have_begun:
                raise
            raise RequestCancelledError("the request must not be sent twice") from error

    def has_fault(self, arm: Arm) -> bool:
        """Whether an answer with a fault was passed on."""
        return self._fault(arm) is not None

    def may_hedge(self, arm: Arm) -> bool:
        """Whether a silent server may be overtaken: only by a stream, and before its first token."""
        return self._request.is_stream and not self._has_begun and not self._request.has_effects

    def deliver(self, chunk: Piece) -> None:
        """Note that the client has a piece."""
        self._has_begun = True

    def observed(self, observation: Observation) -> Observation:
        """Complete the observation of an answer; one with a fault counts as none."""
        self._lasted_s = observation.e2e_latency_s or 0.0
        # A server that is asked for too much has failed as well: both get requests of the same clients.
        reasons: list[FallbackReason] = [
            "error" if reason == "busy" else reason for reason in observation.fallback_reasons
        ]
        observation = replace(
            observation,
            fallback_reasons=tuple(reasons),
            fallback_faults=tuple(map(self._fault_in_words, observation.fallback_from, reasons)),
        )
        return with_answer(observation, self._readings[observation.arm].answer)

    def failed(self, observation: Observation, error: DraftproofError) -> Observation:
        """Complete the observation of a request without an answer; the client is to blame for a refusal."""
        arm, fault = self.fault_of(error)
        if isinstance(error, InvalidRequestError):
            return replace(observation, arm=arm)
        return replace(observation, arm=arm, failure="error", fault=fault.name)

    def fault_of(self, error: DraftproofError) -> tuple[Arm, Fault]:
        """Return the arm that an error comes from, and what went wrong."""
        for arm, reading in self._readings.items():
            if reading.fault is not None and reading.fault.error in (error, error.__cause__):
                return arm, reading.fault
        return next(reversed(self._readings)), Fault(error.message, error)

    @property
    def prompt(self) -> str:
        """Prompt or conversation as text."""
        return self._request.prompt

    @property
    def received(self) -> Answer:
        """The answer that the client got; only what the stable server answered is replayed."""
        return self._readings["stable"].answer

    @property
    def replay_arms(self) -> tuple[Arm, ...]:
        """A replay asks the candidate, and the stable server too if both can repeat an answer.

        In how many replays the stable server differs from itself is the noise above which a candidate is
        judged, so it is recorded first. What has effects is not repeated.
        """
        if self._request.has_effects:
            return ()
        return ("candidate", "stable") if self._request.should_repeat else ("candidate",)

    async def repeat(self, table: ArmTable, arm: Arm) -> Answer:
        """Ask a server again."""
        reading = Reading(self._request, self._server(table, arm))
        limit_s = table.slow_after_s + _MOST_TIMES * self._lasted_s
        try:
            await within(limit_s, _read(reading))
        except asyncio.TimeoutError:  # else silent replays would keep all others waiting
            reading.answer.cut("no answer in time")
        except DraftproofError:
            pass  # the answer has the fault
        return reading.answer

    async def expected(self, table: ArmTable) -> Answer | None:
        """Return the client's answer; None if no server would give the same one again."""
        return self.received if self._request.should_repeat else None

    def _server(self, table: ArmTable, arm: Arm) -> Upstream:
        return self._servers[table.sockets[arm]]

    def _fault(self, arm: Arm) -> Fault | None:
        reading = self._readings.get(arm)
        return None if reading is None else reading.fault

    def _fault_in_words(self, arm: Arm, reason: str) -> str:
        if (fault := self._fault(arm)) is not None:
            return fault.name
        return {"timeout": "no token in time", "out": "not asked: it failed too often"}.get(reason, reason)


async def _read(reading: Reading) -> None:
    async with aclosing(reading.pieces()) as pieces:
        async for _ in pieces:
            pass
