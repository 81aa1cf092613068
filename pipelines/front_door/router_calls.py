"""Sends requests to the model ``router`` over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterable, Sequence
from contextlib import aclosing
from typing import Any, Protocol

import grpc  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2

from pipelines.client.connection import Timeouts
from pipelines.client.generation import Chunk, chunk_from_outputs
from pipelines.client.grpc_transport import as_error, infer_message, outputs_of
from pipelines.client.refusals import refusal, unreachable
from pipelines.deploy.served_files import METHOD, ROUTER
from pipelines.errors import InternalError
from pipelines.kserve_stream import read_to_the_end, responses_to
from pipelines.wire.request import CompletionRequest

_DESCRIBES_WITHIN_S = 30.0  # a tokenizer has some 10 MB
_METHOD = "/inference.GRPCInferenceService/"
_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.http2.bdp_probe", 0),  # would let an answer that nobody reads grow in memory
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
]


class RouterCalls(Protocol):
    """Sends requests to ``router``, of one server (``GatewayCalls``) or of a fleet (``fleet.Fleet``)."""

    @property
    def max_requests(self) -> int:
        """Most answers of one request."""

    async def close(self) -> None:
        """Close all connections, which cancels open requests."""

    async def is_ready(self) -> bool:
        """Return whether requests are answered."""

    def stream(self, request: CompletionRequest) -> AsyncGenerator[Chunk, None]:
        """Send one request and stream its chunks; closing the generator cancels the request.

        Raises:
            DraftproofError: The server refused it or failed, or does not answer.
        """

    async def generate_all(self, requests: Sequence[CompletionRequest]) -> list[Chunk]:
        """Answer requests concurrently, each in one chunk; the first error cancels the others.

        Raises:
            DraftproofError: As for ``stream``.
        """


async def all_of(answers: Iterable[Coroutine[Any, Any, Chunk]]) -> list[Chunk]:
    """Await answers concurrently; the first error cancels the others."""
    tasks = [asyncio.create_task(answer) for answer in answers]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


class GatewayCalls:
    """A connection to the gateway of one server. Used on one event loop.

    Attributes:
        max_requests: Most requests that the server answers or keeps waiting at a time; it refuses others.

    Args:
        address: ``host:port`` of the gateway's gRPC server.
        timeouts: Timeouts of every request.
        max_requests: See above.
    """

    def __init__(self, address: str, timeouts: Timeouts, max_requests: int) -> None:
        self.max_requests = max_requests
        self._address = address
        self._timeouts = timeouts
        self._channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        self._infer = self._channel.stream_stream(
            f"{_METHOD}ModelStreamInfer",
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
        )
        self._model_ready = self._channel.unary_unary(
            f"{_METHOD}ModelReady",
            request_serializer=service_pb2.ModelReadyRequest.SerializeToString,
            response_deserializer=service_pb2.ModelReadyResponse.FromString,
        )
        self._describe = self._channel.unary_unary(
            f"{_METHOD}ServerMetadata",
            request_serializer=service_pb2.ServerMetadataRequest.SerializeToString,
            response_deserializer=service_pb2.ServerMetadataResponse.FromString,
        )
        self._files = self._channel.unary_unary(METHOD)

    async def close(self) -> None:
        """Close the connection, which cancels open requests."""
        await self._channel.close(None)

    async def extensions(self) -> tuple[str, ...]:
        """Return the extensions of the server's metadata; empty if nothing answers."""
        try:
            message = service_pb2.ServerMetadataRequest()
            return tuple((await self._describe(message, timeout=self._timeouts.connect_s)).extensions)
        except grpc.aio.AioRpcError:
            return ()

    async def served_files(self) -> bytes | None:
        """Return what the server says of its model (``ServedFiles.of_wire``); None if it says nothing."""
        try:
            content: bytes = await self._files(b"", timeout=_DESCRIBES_WITHIN_S)
        except grpc.aio.AioRpcError:
            return None
        return content

    async def is_ready(self) -> bool:
        """Return whether ``router`` answers; False if nothing answers."""
        try:
            message = service_pb2.ModelReadyRequest(name=ROUTER)
            return bool((await self._model_ready(message, timeout=self._timeouts.connect_s)).ready)
        except grpc.aio.AioRpcError:
            return False

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Chunk, None]:
        """Send one request and stream its chunks; closing the generator cancels the request.

        Raises:
            DraftproofError: The server refused it or failed, or does not answer.
        """
        async with aclosing(self._chunks(request, streaming=True)) as arriving:
            async for chunk in arriving:
                yield chunk

    async def generate_all(self, requests: Sequence[CompletionRequest]) -> list[Chunk]:
        """Answer requests concurrently, each in one chunk; the first error cancels the others.

        Raises:
            DraftproofError: As for ``stream``.
        """
        return await all_of(map(self._generate, requests))

    async def _generate(self, request: CompletionRequest) -> Chunk:
        async with aclosing(self._chunks(request, streaming=False)) as arriving:
            chunks = [chunk async for chunk in arriving]
        if len(chunks) != 1 or not chunks[0].finish_reason:
            raise InternalError(
                "the server's answer is inconsistent",
                values=f"{len(chunks)} responses",
                limit="one response with the whole answer",
                remedy="read the server's log",
            )
        return chunks[0]

    async def _chunks(self, request: CompletionRequest, *, streaming: bool) -> AsyncGenerator[Chunk, None]:
        message = infer_message(request, ROUTER, self._timeouts, streaming=streaming)
        call = self._infer(timeout=self._timeouts.total_s)
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
                        yield chunk_from_outputs(outputs_of(response), loop.time())
            if not is_finished:
                raise unreachable(self._address, "the stream ended before the last response")
        except grpc.aio.AioRpcError as error:
            raise as_error(error, self._address, self._timeouts) from None


async def merged(
    answers: Sequence[AsyncGenerator[Chunk, None]],
) -> AsyncGenerator[tuple[int, Chunk], None]:
    """Stream the chunks of several answers as they arrive, each with the number of its answer.

    The first error ends all of them. While nobody takes chunks, at most two of each answer are kept.
    """
    if len(answers) == 1:
        async with aclosing(answers[0]) as chunks:
            async for chunk in chunks:
                yield 0, chunk
        return
    arrived: asyncio.Queue[tuple[int, Chunk | BaseException | None]] = asyncio.Queue(len(answers))
    tasks = [asyncio.create_task(_collect(*each, arrived)) for each in enumerate(answers)]
    try:
        num_open = len(answers)
        while num_open:
            number, arrival = await arrived.get()
            if isinstance(arrival, BaseException):
                raise arrival
            if arrival is None:
                num_open -= 1
            else:
                yield number, arrival
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _collect(
    number: int,
    answer: AsyncGenerator[Chunk, None],
    arrived: asyncio.Queue[tuple[int, Chunk | BaseException | None]],
) -> None:
    try:
        async with aclosing(answer) as chunks:
            async for chunk in chunks:
                await arrived.put((number, chunk))
    except Exception as error:
        await arrived.put((number, error))
    else:
        await arrived.put((number, None))
