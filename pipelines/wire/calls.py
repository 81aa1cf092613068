"""Both ends of the engine's Unix socket: a router's calls, and the server that takes them.

This replaces BLS, which crashes: Triton's Python backend (2.51, unchanged in July 2026) converts the
responses of decoupled models to Python objects on a thread without the GIL
(``Stub::ProcessBLSResponseDecoupled``). Under Python 3.12 that ends the process within a few calls. Sockets
also reveal a caller that disconnects and an engine whose process has died.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from pathlib import Path

from pipelines.asyncio_thread import AsyncioThread
from pipelines.errors import (
    DraftproofError,
    EngineFailedError,
    ProcessEndedError,
    ServerBusyError,
    TransportError,
    from_wire,
)
from pipelines.wire.chunk import Chunk
from pipelines.wire.messages import EngineRequest, Reply, encoded, garbled, receive
from pipelines.wire.responder import Outlet

# Time to connect during a burst; after that the caller is told to try again later.
_CONNECT_TIMEOUT_S = 5.0
_CONNECT_PAUSE_S = 0.01

# Limits of this process or the machine, so not the fault of the called model.
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_BACKLOG = 4096  # Linux's default limit (net.core.somaxconn); further callers wait in ``_connected``

_IGNORED_BYTES = 1 << 16

Begin = Callable[[EngineRequest, Outlet[Chunk]], None]
"""Starts answering a request without waiting for the answer; raises nothing."""


async def stream(path: Path, request: EngineRequest) -> AsyncGenerator[Chunk, None]:
    """Send a request to the engine behind a socket; closing the stream cancels the answer.

    Each call opens its own connection, which costs 0.1 ms. Closing it tells the other side that the caller
    has gone, and a failed call cannot affect the next one.

    Args:
        path: The engine's socket.
        request: The request; its timeout starts now.

    Yields:
        Each chunk; the last one has a finish reason.

    Raises:
        DraftproofError: The error that the engine raised.
        ProcessEndedError: The engine's process has ended; ``took_request`` says whether it had the request.
        ServerBusyError: The engine cannot accept the call in time.
        TransportError: The request or a reply cannot be read.
    """
    writer: asyncio.StreamWriter | None = None
    is_taken = is_final = False
    try:
        while not is_final:
            try:
                if writer is None:
                    message = encoded(request)
                    connection = await _connected(path)
                    reader, writer = await asyncio.open_unix_connection(sock=connection)
                    writer.write(message)
                    await writer.drain()
                reply = await receive(Reply, reader)
            except (OSError, asyncio.IncompleteReadError) as error:
                ended = ProcessEndedError(
                    f"the engine's process ended, and is replaced within seconds: {path.name}: {error!r}",
                    "send the request again; the server's log has the cause",
                )
                ended.took_request = is_taken
                raise ended from None
            if reply.is_taken:
                is_taken = True
            elif reply.error:
                raise from_wire(reply.error) or EngineFailedError(reply.error)
            elif reply.chunk is None:
                raise garbled("a reply without a chunk")
            else:
                is_final = bool(reply.chunk.finish_reason)
                yield replace(reply.chunk, received_at_s=time.monotonic())
    finally:
        if writer is not None:
            await closed(writer)


async def _connected(path: Path) -> socket.socket:
    """Connect, and wait while the backlog is full.

    asyncio's own connect mistakes a full backlog for a connection in progress, and then for a broken one.
    """
    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError as error:
        if error.errno in _EXHAUSTED:
            raise _too_many(path, str(error)) from None
        raise
    try:
        connection.setblocking(False)
        give_up_s = time.monotonic() + _CONNECT_TIMEOUT_S
        while True:
            try:
                connection.connect(str(path))
                return connection
            except BlockingIOError:
                if time.monotonic() > give_up_s:
                    raise
            await asyncio.sleep(_CONNECT_PAUSE_S)
    except BaseException as error:
        connection.close()
        if isinstance(error, BlockingIOError):
            raise _too_many(path, "its backlog is full") from None
        raise


def _too_many(path: Path, reason: str) -> ServerBusyError:
    return ServerBusyError(
        f"too many calls to the model: {path.name} took none within {_CONNECT_TIMEOUT_S:g} s: {reason}",
        "send the request again later",
    )


async def closed(writer: asyncio.StreamWriter) -> None:
    """Close a connection and ignore errors of the other side."""
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


class CallServer:
    """Listens on a socket until it is closed, on a thread of its own.

    Accepting a call takes several iterations of an event loop, and the step loop runs only one per engine
    step. Responses are written on the thread that produces them: handing them over would add 0.5 ms to each
    TTFT.

    Args:
        path: Path of the socket; only this user may connect.
        begin: Called for each request on this server's thread.
    """

    def __init__(self, path: Path, begin: Begin) -> None:
        self._begin = begin
        self._thread = AsyncioThread("socket-server")
        self._thread.start()
        self._thread.spawn(self._listen(path)).result()

    def close(self) -> None:
        """Close all connections, which tells the callers that no more responses will come."""
        self._thread.spawn(self._stop_listening()).result()
        self._thread.stop()

    async def _listen(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX)
        # Linux gives the file the mode of the socket: it is never open to others, whatever the umask.
        os.fchmod(listening.fileno(), 0o600)
        listening.bind(str(path))
        self._server = await asyncio.start_unix_server(self._serve, sock=listening, backlog=_BACKLOG)

    async def _stop_listening(self) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        outlet = _SocketOutlet(writer)
        try:
            try:
                request = await receive(EngineRequest, reader)
            except TransportError as error:
                outlet.fail(error)
            else:
                outlet.take()
                self._begin(request, outlet)
            while await reader.read(_IGNORED_BYTES):
                pass
            # The caller has closed the connection, before or after the last response.
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the caller has disconnected
        finally:
            outlet.leave()
            await closed(writer)


class _SocketOutlet:
    """An ``Outlet`` of chunks to a socket. Thread-safe."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._loop = asyncio.get_running_loop()
        self._writer = writer
        # A duplicate, so that no thread writes to a descriptor that asyncio has closed and the system reused.
        self._socket: socket.socket = writer.get_extra_info("socket").dup()
        self._lock = threading.Lock()
        self._is_behind = False  # once the socket was full, asyncio buffers everything that follows
        self._is_gone = False
        self._on_gone: Callable[[], object] | None = None

    def take(self) -> None:
        """Tell the caller that this process has the request: if it ends now, the request may be the cause."""
        self._write(Reply(is_taken=True))

    def send(self, answer: Chunk, *, is_final: bool) -> None:
        """Send one chunk."""
        self._write(Reply(chunk=answer))

    def fail(self, error: DraftproofError) -> None:
        """Send an error as the last reply."""
        self._write(Reply(error=error.to_wire().encode("utf-8", "replace").decode()))

    def watch(self, on_gone: Callable[[], object]) -> None:
        """Register a callback for a disconnect of the caller."""
        self._loop.call_soon_threadsafe(self._begin_to_watch, on_gone)

    def leave(self) -> None:
        """Report that the caller has disconnected; has no effect after the last response."""
        with self._lock:
            self._is_gone = True
            self._socket.close()
        if self._on_gone is not None:
            self._on_gone()

    def _begin_to_watch(self, on_gone: Callable[[], object]) -> None:
        self._on_gone = on_gone
        if self._is_gone:
            on_gone()

    def _write(self, reply: Reply) -> None:
        # No backpressure: answers are bounded, and callers are parts of this server that read immediately.
        try:
            data = encoded(reply)
        except TransportError as error:
            data = encoded(Reply(error=error.to_wire()))
        with self._lock:
            if self._is_gone:
                return
            if not self._is_behind:
                with contextlib.suppress(OSError):  # the socket is full, or closed, which the reader notices
                    data = data[self._socket.send(data) :]
            if data:
                self._is_behind = True
                self._loop.call_soon_threadsafe(self._writer.write, data)
