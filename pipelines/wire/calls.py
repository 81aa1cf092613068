"""Calls another model of the same server over a Unix socket and reads its responses.

This replaces BLS, which crashes: Triton's Python backend (2.51, unchanged in July 2026) converts the
responses of decoupled models to Python objects on a thread without the GIL
(``Stub::ProcessBLSResponseDecoupled``). Under Python 3.12 that ends the process within a few calls. Sockets
also reveal a caller that disconnects and an engine whose process has died.

A message is a line of JSON with the name, type, shape and size of each tensor, followed by their bytes. The
first one says that the process has taken the request. A response contains only the tensors that have changed
since the previous one.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import socket
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.errors import EngineFailedError, ProcessEndedError, ServerBusyError, TransportError, from_wire

# Two dozen tensors take 2 KB, a client's id up to 2 KB as JSON, the longest error up to 48 KB.
MAX_HEADER_BYTES = 1 << 16

# Time to connect during a burst; after that the caller is told to try again later.
_CONNECT_TIMEOUT_S = 5.0
_CONNECT_PAUSE_S = 0.01

# Limits of this process or the machine, so not the fault of the called model.
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

Tensors = dict[str, npt.NDArray[Any]]

Responses = AsyncGenerator[tuple[Tensors, bool], None]
"""Tensors of each response, and whether it is the last."""


@dataclass(frozen=True)
class Call:
    """A request to another model.

    Attributes:
        tensors: Inputs by name.
        request_id: Id from the caller; need not be unique.
        timeout_us: Time limit in microseconds; 0 for none.
    """

    tensors: Tensors
    request_id: str
    timeout_us: int


async def stream(path: Path, call: Call) -> AsyncGenerator[tuple[Tensors, bool], None]:
    """Send a request to the model behind a socket; closing the stream cancels the answer.

    Each call opens its own connection, which costs 0.1 ms. Closing it tells the other side that the caller
    has gone, and a failed call cannot affect the next one.

    Args:
        path: The model's socket.
        call: The request; its timeout starts now.

    Yields:
        All tensors of each response, and whether it is the last.

    Raises:
        DraftproofError: The error that the model raised.
        ProcessEndedError: The model's process has ended; ``took_request`` says whether it had the request.
        ServerBusyError: The model cannot accept the call in time.
        TransportError: The call or a response cannot be read.
    """
    writer: asyncio.StreamWriter | None = None
    response: Tensors = {}
    is_taken = is_final = False
    try:
        while not is_final:
            try:
                if writer is None:
                    header = {"request_id": call.request_id, "timeout_us": call.timeout_us}
                    parts = message(header, call.tensors)
                    connection = await _connected(path)
                    reader, writer = await asyncio.open_unix_connection(
                        sock=connection, limit=MAX_HEADER_BYTES
                    )
                    writer.writelines(parts)
                    await writer.drain()
                header, changed = await receive(reader)
            except (OSError, asyncio.IncompleteReadError) as error:
                ended = ProcessEndedError(
                    "the engine's process ended",
                    values=f"{path.name}: {error!r}",
                    limit="it must run as long as the server does, and is replaced within seconds",
                    remedy="send the request again; the server's log has the cause",
                )
                ended.took_request = is_taken
                raise ended from None
            if "is_taken" in header:
                is_taken = True
                continue
            if "error" in header:
                error_text = str(header["error"])
                raise from_wire(error_text) or EngineFailedError(error_text)
            if "is_final" not in header:
                raise garbled(f"a response without is_final: {list(header)!r:.200}")
            is_final = bool(header["is_final"])
            response = {**response, **changed}
            yield response, is_final
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


def _too_many(path: Path, values: str) -> ServerBusyError:
    return ServerBusyError(
        "too many calls to the model",
        values=f"{path.name}: {values}",
        limit=f"a connection within {_CONNECT_TIMEOUT_S:g} s",
        remedy="send the request again later",
    )


async def closed(writer: asyncio.StreamWriter) -> None:
    """Close a connection and ignore errors of the other side."""
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def message(header: Mapping[str, Any], tensors: Mapping[str, npt.NDArray[Any]]) -> list[bytes]:
    """Encode a message as a list of byte strings.

    Raises:
        TransportError: The header is too long to be read back.
    """
    parts = []
    described = []
    for name, array in tensors.items():
        if array.dtype == np.object_:  # a single text
            data, dtype = bytes(array.reshape(-1)[0]), "text"
        else:
            data, dtype = array.tobytes(), array.dtype.str
        parts.append(data)
        described.append([name, dtype, list(array.shape), len(data)])
    line = json.dumps({**header, "tensors": described}).encode("utf-8") + b"\n"
    if len(line) > MAX_HEADER_BYTES:
        raise garbled(f"a header of {len(line)} bytes")
    return [line, *parts]


async def receive(reader: asyncio.StreamReader) -> tuple[dict[str, Any], Tensors]:
    """Read the next message.

    Raises:
        asyncio.IncompleteReadError: The other side has disconnected.
        TransportError: The message is malformed.
    """
    try:
        return await _receive(reader)
    except (asyncio.LimitOverrunError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise garbled(f"{error!r:.200}") from None


def garbled(values: str) -> TransportError:
    """Return the error for a malformed message."""
    return TransportError(
        "a call between two models cannot be read",
        values=values,
        limit=f"a line of JSON of at most {MAX_HEADER_BYTES} bytes, then the tensors that it describes",
        remedy="this is a bug in Draftproof; send the request again and report it",
    )


async def _receive(reader: asyncio.StreamReader) -> tuple[dict[str, Any], Tensors]:
    header: dict[str, Any] = json.loads(await reader.readuntil(b"\n"))
    described = header["tensors"]
    data = memoryview(await reader.readexactly(sum(num_bytes for *_, num_bytes in described)))
    tensors: Tensors = {}
    for name, dtype, shape, num_bytes in described:
        piece, data = data[:num_bytes], data[num_bytes:]
        if dtype == "text":
            tensors[name] = np.array([bytes(piece)], dtype=np.object_).reshape(shape)
        else:
            tensors[name] = np.frombuffer(piece, dtype=np.dtype(dtype)).reshape(shape)
    return header, tensors
