"""Accepts requests to an engine on a Unix socket, on a thread of its own.

Accepting a call takes several iterations of an event loop, and the step loop runs only one per engine step.
Responses are written on the thread that produces them: handing them over would add 0.5 ms to each TTFT.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from pipelines.asyncio_thread import AsyncioThread
from pipelines.errors import DraftproofError, TransportError
from pipelines.wire.calls import closed
from pipelines.wire.chunk import Chunk
from pipelines.wire.messages import EngineRequest, Reply, encoded, receive
from pipelines.wire.responder import Outlet

_BACKLOG = 4096  # Linux's default limit (net.core.somaxconn); further callers wait in ``calls``

_IGNORED_BYTES = 1 << 16

Begin = Callable[[EngineRequest, Outlet[Chunk]], None]
"""Starts answering a request without waiting for the answer; raises nothing."""


class CallServer:
    """Listens on a socket until it is closed.

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
