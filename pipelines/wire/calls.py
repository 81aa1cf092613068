"""Calls the engine over its Unix socket and reads its chunks.

This replaces BLS, which crashes: Triton's Python backend (2.51, unchanged in July 2026) converts the
responses of decoupled models to Python objects on a thread without the GIL
(``Stub::ProcessBLSResponseDecoupled``). Under Python 3.12 that ends the process within a few calls. Sockets
also reveal a caller that disconnects and an engine whose process has died.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

from pipelines.errors import EngineFailedError, ProcessEndedError, ServerBusyError, from_wire
from pipelines.wire.chunk import Chunk
from pipelines.wire.messages import EngineRequest, Reply, encoded, garbled, receive

# Time to connect during a burst; after that the caller is told to try again later.
_CONNECT_TIMEOUT_S = 5.0
_CONNECT_PAUSE_S = 0.01

# Limits of this process or the machine, so not the fault of the called model.
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


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
