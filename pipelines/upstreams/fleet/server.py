"""One server of a fleet, as this front door sees it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import grpc  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2, service_pb2_grpc

from pipelines.client.connection import NOTICES_DEATH, Timeouts
from pipelines.client.refusals import as_error, refusal, unreachable
from pipelines.client.tensors import chunk_of, infer_message
from pipelines.deploy.identity import ServerIdentity
from pipelines.deploy.served_files import METHOD
from pipelines.deploy.triton.models import ROUTER
from pipelines.errors import RepositoryError
from pipelines.kserve_stream import read_to_the_end, responses_to
from pipelines.router.breaker import Breaker, Outcome
from pipelines.wire.chunk import Chunk
from pipelines.wire.request import CompletionRequest

_LOG = logging.getLogger(__name__)

_MOST_MISSED = 2
"""Looks in a row at which a server that was ready may be silent: one is missed on a busy machine."""


_LOOKS_WITHIN_S = 1.0
_DESCRIBES_WITHIN_S = 30.0  # a tokenizer has some 10 MB
_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.http2.bdp_probe", 0),  # would let an answer that nobody reads grow in memory
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
    *NOTICES_DEATH,
]


class GatewayCalls:
    """A connection to the gateway of one server. Used on one event loop.

    Args:
        address: ``host:port`` of the gateway's gRPC server.
        timeout_s: Longest time of an answer in seconds; None for as long as the server works on it.
    """

    def __init__(self, address: str, timeout_s: float | None = None) -> None:
        self._address = address
        self._timeouts = Timeouts(total_s=timeout_s)
        self._channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._files = self._channel.unary_unary(METHOD)

    async def close(self) -> None:
        """Close the connection, which cancels open requests."""
        await self._channel.close(None)

    async def extensions(self) -> tuple[str, ...]:
        """Return the extensions of the server's metadata; empty if nothing answers."""
        metadata = await self._ask(self._stub.ServerMetadata, service_pb2.ServerMetadataRequest())
        return () if metadata is None else tuple(metadata.extensions)

    async def served_files(self) -> bytes | None:
        """Return what the server says of its model (``ServedFiles.of_wire``); None if it says nothing."""
        content: bytes | None = await self._ask(self._files, b"", _DESCRIBES_WITHIN_S)
        return content

    async def is_ready(self) -> bool:
        """Return whether ``router`` answers; False if nothing answers."""
        answer = await self._ask(self._stub.ModelReady, service_pb2.ModelReadyRequest(name=ROUTER))
        return answer is not None and bool(answer.ready)

    async def _ask(self, method: Any, message: Any, timeout_s: float = _LOOKS_WITHIN_S) -> Any:
        try:
            return await method(message, timeout=timeout_s)
        except grpc.aio.AioRpcError:
            return None

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Chunk, None]:
        """Send one request and stream its chunks; closing the generator cancels the request.

        Raises:
            DraftproofError: The server refused it or failed, or does not answer.
        """
        message = infer_message(request, ROUTER, self._timeouts, streaming=True)
        call = self._stub.ModelStreamInfer(timeout=self._timeouts.total_s)
        loop = asyncio.get_running_loop()
        is_finished = False
        try:
            async with aclosing(responses_to(message, call)) as arriving:
                async for arrival in arriving:
                    if arrival.error_message:
                        await read_to_the_end(arriving)
                        raise refusal(arrival.error_message)
                    response = arrival.infer_response
                    is_finished = response.parameters["triton_final_response"].bool_param
                    if response.outputs:
                        yield chunk_of(response, loop.time())
            if not is_finished:
                raise unreachable(self._address, "the stream ended before the last response")
        except grpc.aio.AioRpcError as error:
            raise as_error(error, self._address, self._timeouts) from None


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
        note = self._breaker.begin(time.monotonic())
        self.num_open += 1

        def end(outcome: Outcome) -> None:
            self.num_open -= 1
            self.num_failures += outcome in ("error", "timeout")
            note(outcome, time.monotonic())

        return end
