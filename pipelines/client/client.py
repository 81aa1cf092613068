"""The client: one class, whatever the transport."""

from __future__ import annotations

import time
import urllib.parse
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Protocol

from pipelines.client.generation import Chunk, Generation, join_chunks
from pipelines.client.request import CompletionRequest
from pipelines.client.timeouts import Timeouts
from pipelines.errors import InvalidRequestError


class Call(Protocol):
    """A request on its way."""

    def receive(self) -> Chunk | None:
        """Wait for the next chunk; None after the last."""

    def close(self) -> None:
        """Cancel what is not yet answered and free the connection; safe to call twice."""


class Transport(Protocol):
    """What ``Client`` needs of gRPC or HTTP. Every method raises errors of ``pipelines.errors`` only."""

    def start(self, request: CompletionRequest, model: str, *, streaming: bool) -> Call:
        """Send a request."""

    def is_ready(self) -> bool:
        """Whether the server says that it is ready; False if nothing answers."""

    def server_version(self) -> str:
        """Triton's version."""

    def model_parameters(self, model: str) -> Mapping[str, str]:
        """The ``parameters`` of a model's config.pbtxt."""

    def close(self) -> None:
        """Close all connections."""


class GenerationStream(Iterator[Chunk]):
    """Chunks of one answer as they arrive. Closing it, or leaving its ``with`` block, cancels the rest.

    Args:
        call: The request, already sent.
        sent_at_s: When, on ``time.monotonic``'s clock.
        streamed: Whether the server was asked to stream.
    """

    def __init__(self, call: Call, sent_at_s: float, *, streamed: bool = True) -> None:
        self._call = call
        self._sent_at_s = sent_at_s
        self._streamed = streamed
        self._chunks: list[Chunk] = []

    def __next__(self) -> Chunk:
        try:
            chunk = self._call.receive()
        except BaseException:  # KeyboardInterrupt too: the server must not go on for nobody
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
            DraftproofError: As the server raised it.
        """
        for _ in self:
            pass
        return join_chunks(self._chunks, self._sent_at_s, streamed=self._streamed)

    def close(self) -> None:
        """Cancel what is not yet answered: the server frees the request's memory at once."""
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
    """Asks one server. Use one client per thread; ``connect`` makes it.

    Args:
        url: Where ``transport`` leads, for messages.
        transport: gRPC, HTTP, or a stand-in in tests.
    """

    def __init__(self, url: str, transport: Transport) -> None:
        self.url = url
        self._transport = transport

    @classmethod
    def connect(cls, url: str, timeouts: Timeouts | None = None) -> Client:
        """Make a client. The server need not be up yet: see ``is_ready``.

        Args:
            url: ``grpc://host:port`` or ``http://host:port``.
            timeouts: None means ``Timeouts()``.

        Raises:
            InvalidRequestError: The address has another form.
        """
        scheme, address = split_url(url)
        timeouts = timeouts or Timeouts()
        # Imported here so that a user of one transport needs not the packages of the other.
        if scheme == "grpc":
            from pipelines.client.grpc_transport import GrpcTransport

            return cls(url, GrpcTransport(address, timeouts))
        from pipelines.client.http_transport import HttpTransport

        return cls(url, HttpTransport(address, timeouts))

    def generate(self, request: CompletionRequest, model: str = "generate") -> Generation:
        """Ask for a whole answer in one response.

        Raises:
            DraftproofError: The class that the server raised, or ServerUnavailableError,
                RequestTimeoutError, InvalidRequestError of the client's own.
        """
        return self._start(request, model, streaming=False).result()

    def stream(self, request: CompletionRequest, model: str = "generate") -> GenerationStream:
        """Ask for an answer in chunks; ``GenerationStream.result`` adds them up.

        Raises:
            DraftproofError: As ``generate``; while iterating, too.
        """
        return self._start(request, model, streaming=True)

    def is_ready(self) -> bool:
        """Whether the server says that it is ready; False if nothing answers."""
        return self._transport.is_ready()

    def server_version(self) -> str:
        """Version of the Triton server."""
        return self._transport.server_version()

    def model_parameters(self, model: str) -> Mapping[str, str]:
        """The ``parameters`` of the model's config.pbtxt, as the server loaded it."""
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
        InvalidRequestError: It has another form.
    """
    parts = urllib.parse.urlsplit(url if "://" in url else f"grpc://{url}")
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme not in ("grpc", "http") or not parts.hostname or port is None or parts.path.strip("/"):
        raise InvalidRequestError(
            "the server's address cannot be used",
            values=f"url={url!r}",
            limit="grpc://host:port, http://host:port, or host:port for gRPC",
            remedy="for a local server try grpc://127.0.0.1:8001",
        )
    return parts.scheme, parts.netloc
