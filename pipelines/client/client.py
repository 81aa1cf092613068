"""The client of one server."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from pipelines.client.connection import SPECULATIVE, Timeouts, address_of, key_of_environment
from pipelines.client.generation import Generation, join_chunks
from pipelines.wire.chunk import Chunk
from pipelines.wire.request import CompletionRequest

if TYPE_CHECKING:
    from pipelines.client.grpc_transport import GrpcCall, GrpcTransport


class GenerationStream(Iterator[Chunk]):
    """Iterator over the chunks of one answer. ``close``, or leaving its ``with`` block, cancels the rest.

    Args:
        call: Request that was sent.
        sent_at_s: Time of sending on ``time.monotonic``'s clock.
        streamed: Whether the answer is streamed.
    """

    def __init__(self, call: GrpcCall, sent_at_s: float, *, streamed: bool = True) -> None:
        self._call = call
        self._sent_at_s = sent_at_s
        self._streamed = streamed
        self._chunks: list[Chunk] = []

    def __next__(self) -> Chunk:
        try:
            chunk = self._call.receive()
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
        """Cancel the rest of the answer; the server frees the request's memory immediately."""
        self._call.close()

    def __enter__(self) -> GenerationStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class Client:
    """Client of one server, for any number of threads. Create it with ``connect``.

    Args:
        url: Address of the server, for messages.
        transport: Way to the server.
    """

    def __init__(self, url: str, transport: GrpcTransport) -> None:
        self.url = url
        self._transport = transport

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
        # Imported here, because gRPC takes a tenth of a second, and not every program connects.
        from pipelines.client.grpc_transport import GrpcTransport

        key = key_of_environment() if key is None else key
        return cls(url, GrpcTransport(address_of(url), timeouts or Timeouts(), key))

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
        return self._transport.is_ready()

    def server_version(self) -> str:
        """Return the version of the Triton server."""
        return self._transport.server_version()

    def model_parameters(self, model: str) -> Mapping[str, str]:
        """Return the ``parameters`` of a model's config.pbtxt, as the server loaded it."""
        return self._transport.model_parameters(model)

    def close(self) -> None:
        """Close all connections."""
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, request: CompletionRequest, model: str, *, streaming: bool) -> GenerationStream:
        sent_at_s = time.monotonic()
        call = self._transport.start(request, model, streaming=streaming)
        return GenerationStream(call, sent_at_s, streamed=streaming)
