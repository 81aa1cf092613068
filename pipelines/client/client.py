"""The client of one server, over gRPC (KServe v2) with one ``ModelStreamInfer`` call per request.

Generating models are decoupled, and Triton serves those over gRPC only through a stream, whether the answer
is streamed or not. The client uses tritonclient's generated messages, but neither of its clients: the
synchronous one allows one stream at a time and leaks a thread for each cancelled one, and the asyncio one
cannot ask for the marked last response.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import grpc  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2, service_pb2_grpc

from pipelines.client.connection import NOTICES_DEATH, SPECULATIVE, Timeouts, address_of, key_of_environment
from pipelines.client.generation import Generation, join_chunks
from pipelines.client.refusals import as_error, refusal, timed_out, unreachable
from pipelines.client.tensors import chunk_of, infer_message
from pipelines.wire.chunk import Chunk
from pipelines.wire.request import KEY_HEADER, CompletionRequest


class GenerationStream(Iterator[Chunk]):
    """Iterator over the chunks of one answer. ``close``, or leaving its ``with`` block, cancels the rest.

    A thread receives the responses, so that arrival times do not depend on the caller.

    Args:
        call: Call object of the stub.
        address: Address of the server, for messages.
        timeouts: Timeouts of the call.
        sent_at_s: Time of sending on ``time.monotonic``'s clock.
        streamed: Whether the answer is streamed.
    """

    def __init__(
        self, call: Any, address: str, timeouts: Timeouts, sent_at_s: float, *, streamed: bool
    ) -> None:
        self._call = call
        self._address = address
        self._timeouts = timeouts
        self._sent_at_s = sent_at_s
        self._streamed = streamed
        self._limit_s = timeouts.total_s  # of the first response, before which the server reads the prompt
        self._arrivals: queue.SimpleQueue[tuple[float, Any]] = queue.SimpleQueue()
        self._chunks: list[Chunk] = []
        self._is_finished = False
        threading.Thread(target=self._receive_all, name="draftproof-client", daemon=True).start()

    def __next__(self) -> Chunk:
        try:
            chunk = self._receive()
        except BaseException:  # KeyboardInterrupt too, so that the server stops generating
            self.close()
            raise
        if chunk is None:
            self.close()
            raise StopIteration
        self._chunks.append(chunk)
        return chunk

    def result(self) -> Generation:
        """Wait for the rest and return the whole answer.

        Raises:
            DraftproofError: The error that the server raised.
        """
        for _ in self:
            pass
        return join_chunks(self._chunks, self._sent_at_s, streamed=self._streamed)

    def close(self) -> None:
        """Cancel the rest of the answer, unless it is complete or failed.

        The server frees the request's memory immediately. Triton 2.51 may never release a call that is
        cancelled while it ends (its pull request 8078), nor the model: the server then waits for its exit
        timeout and ends with an error.
        """
        if not self._is_finished:
            self._is_finished = True
            self._call.cancel()

    def __enter__(self) -> GenerationStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def _receive(self) -> Chunk | None:
        """Wait for the next chunk; None after the last."""
        while not self._is_finished:
            try:
                received_at_s, arrival = self._arrivals.get(timeout=self._limit_s)
            except queue.Empty:
                raise timed_out("no response", self._limit_s) from None
            self._limit_s = self._timeouts.read_s if self._streamed else self._timeouts.total_s
            if isinstance(arrival, grpc.RpcError):
                raise as_error(arrival, self._address, self._timeouts) from arrival
            if arrival is None:
                raise unreachable(self._address, "the stream ended before the last response")
            if arrival.error_message:
                self._is_finished = True  # it is the last response
                raise refusal(arrival.error_message)
            response = arrival.infer_response
            self._is_finished = response.parameters["triton_final_response"].bool_param
            if response.outputs:
                return chunk_of(response, received_at_s)
        return None

    def _receive_all(self) -> None:
        try:
            for response in self._call:
                self._arrivals.put((time.monotonic(), response))
        except grpc.RpcError as error:
            self._arrivals.put((time.monotonic(), error))
        else:
            self._arrivals.put((time.monotonic(), None))


class Client:
    """Client of one server, for any number of threads. Create it with ``connect``.

    Args:
        address: ``host:port`` of the server.
        timeouts: Timeouts of every call.
        key: Key of the server; "" for none.
    """

    def __init__(self, address: str, timeouts: Timeouts, key: str) -> None:
        self._address = address
        self._timeouts = timeouts
        self._metadata = ((KEY_HEADER, key),) if key else None
        self._channel = grpc.insecure_channel(
            address,
            options=[
                ("grpc.max_send_message_length", -1),
                ("grpc.max_receive_message_length", -1),
                ("grpc.enable_http_proxy", 0),
                # gRPC uses this as the timeout of one attempt to connect.
                ("grpc.min_reconnect_backoff_ms", int(timeouts.connect_s * 1000)),
                # The default backoff of up to 20 s would delay clients that poll a starting server.
                ("grpc.initial_reconnect_backoff_ms", 100),
                ("grpc.max_reconnect_backoff_ms", 1000),
                *NOTICES_DEATH,
            ],
        )
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    @classmethod
    def connect(cls, url: str, timeouts: Timeouts | None = None, key: str | None = None) -> Client:
        """Create a client. The server need not run yet, see ``is_ready``.

        Args:
            url: ``grpc://host:port``, or ``host:port``.
            timeouts: Timeouts; None for the defaults.
            key: Key of the server, for operators; None for that of ``DRAFTPROOF_KEY_FILE``, if it is set.

        Raises:
            InvalidRequestError: The address is invalid.
        """
        return cls(address_of(url), timeouts or Timeouts(), key_of_environment() if key is None else key)

    def generate(self, request: CompletionRequest, model: str = SPECULATIVE) -> Generation:
        """Request a whole answer in one response.

        Raises:
            DraftproofError: The error that the server raised, or ServerUnavailableError,
                RequestTimeoutError or InvalidRequestError of the client itself.
        """
        return self._start(request, model, streaming=False).result()

    def stream(self, request: CompletionRequest, model: str = SPECULATIVE) -> GenerationStream:
        """Request a streamed answer; ``GenerationStream.result`` joins its chunks.

        Raises:
            DraftproofError: As for ``generate``, also while iterating.
        """
        return self._start(request, model, streaming=True)

    def is_ready(self) -> bool:
        """Return whether the server is ready; False if nothing answers."""
        asked, limit_s = service_pb2.ServerReadyRequest(), self._timeouts.connect_s
        try:
            return bool(self._stub.ServerReady(asked, timeout=limit_s).ready)
        except grpc.RpcError:
            return False

    def server_version(self) -> str:
        """Return the version of the Triton server."""
        return str(self._ask(self._stub.ServerMetadata, service_pb2.ServerMetadataRequest()).version)

    def model_parameters(self, model: str) -> Mapping[str, str]:
        """Return the ``parameters`` of a model's config.pbtxt, as the server loaded it."""
        reply = self._ask(self._stub.ModelConfig, service_pb2.ModelConfigRequest(name=model))
        return {name: str(value.string_value) for name, value in reply.config.parameters.items()}

    def close(self) -> None:
        """Close the connection, which cancels open requests."""
        self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, request: CompletionRequest, model: str, *, streaming: bool) -> GenerationStream:
        sent_at_s = time.monotonic()
        message = infer_message(request, model, self._timeouts, streaming=streaming)
        call = self._stub.ModelStreamInfer(
            iter((message,)), timeout=self._timeouts.total_s, metadata=self._metadata
        )
        return GenerationStream(call, self._address, self._timeouts, sent_at_s, streamed=streaming)

    def _ask(self, method: Any, message: Any) -> Any:
        try:
            return method(message, timeout=self._timeouts.read_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise as_error(error, self._address, self._timeouts) from error
