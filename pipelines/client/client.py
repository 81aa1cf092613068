"""The client, independent of the transport."""

from __future__ import annotations

import time
import urllib.parse
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Protocol

from pipelines.client.generation import Chunk, Generation, join_chunks
from pipelines.client.model_names import SPECULATIVE
from pipelines.client.request import CompletionRequest
from pipelines.client.server_key import key_of_environment
from pipelines.client.timeouts import Timeouts
from pipelines.errors import InvalidRequestError


class Call(Protocol):
    """A running request."""

    def receive(self) -> Chunk | None:
        """Wait for the next chunk; None after the last."""

    def close(self) -> None:
        """Cancel the rest and free the connection; may be called twice."""


class Transport(Protocol):
    """Interface of gRPC and HTTP for ``Client``. Methods raise only errors of ``pipelines.errors``."""

    def start(self, request: CompletionRequest, model: str, *, streaming: bool) -> Call:
        """Send a request."""

    def is_ready(self) -> bool:
        """Return whether the server is ready; False if nothing answers."""

    def server_version(self) -> str:
        """Return the version of Triton."""

    def model_parameters(self, model: str) -> Mapping[str, str]:
        """Return the ``parameters`` of a model's config.pbtxt."""

    def close(self) -> None:
        """Close all connections."""


class GenerationStream(Iterator[Chunk]):
    """Iterator over the chunks of one answer. ``close``, or leaving its ``with`` block, cancels the rest.

    Args:
        call: Request that was sent.
        sent_at_s: Time of sending on ``time.monotonic``'s clock.
        streamed: Whether the answer is streamed.
    """

    def __init__(self, call: Call, sent_at_s: float, *, streamed: bool = True) -> None:
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
    """Client of one server. Create it with ``connect``, and use one per thread.

    Args:
        url: Address of the server, for messages.
        transport: Transport over gRPC or HTTP, or a stand-in in tests.
    """

    def __init__(self, url: str, transport: Transport) -> None:
        self.url = url
        self._transport = transport

    @classmethod
    def connect(cls, url: str, timeouts: Timeouts | None = None, key: str | None = None) -> Client:
        """Create a client. The server need not run yet, see ``is_ready``.

        Args:
            url: ``grpc://host:port`` or ``http://host:port``.
            timeouts: Timeouts; None for the defaults.
            key: Key of the server, for operators; None for that of ``DRAFTPROOF_KEY_FILE``, if it is set.

        Raises:
            InvalidRequestError: The address is invalid.
        """
        scheme, address = split_url(url)
        timeouts = timeouts or Timeouts()
        key = key_of_environment() if key is None else key
        # Imported here, so that one transport does not require the packages of the other.
        if scheme == "grpc":
            from pipelines.client.transports.grpc import GrpcTransport

            return cls(url, GrpcTransport(address, timeouts, key))
        from pipelines.client.transports.http import HttpTransport

        return cls(url, HttpTransport(address, timeouts, key))

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


def split_url(url: str) -> tuple[str, str]:
    """Split an address into its scheme, "grpc" or "http", and ``host:port``.

    ``host:port`` alone means gRPC.

    Raises:
        InvalidRequestError: The address is invalid.
    """
    parts = urllib.parse.urlsplit(url if "://" in url else f"grpc://{url}")
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme not in ("grpc", "http") or not parts.hostname or port is None or parts.path.strip("/"):
        raise InvalidRequestError(
            "the server's address is invalid",
            values=f"url={url!r}",
            limit="grpc://host:port, http://host:port, or host:port for gRPC",
            remedy="use grpc://127.0.0.1:8001 for a local server",
        )
    return parts.scheme, parts.netloc
