"""Calls between two models of one server over a Unix socket: tensors there, responses or an error back.

Stands in for BLS, which cannot be used for this: Triton's Python backend (2.51, and still in July 2026)
turns the responses of decoupled models into Python objects on a thread without Python's lock
(``Stub::ProcessBLSResponseDecoupled``), and the process crashes, under Python 3.12 within a few calls.
Here a caller that goes away is noticed too, and so is an engine whose process has died.

A message is a line of JSON, which describes the tensors and says how many bytes they have, and these. A
response leaves out what is as in the one before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.errors import EngineFailedError, from_wire

MAX_HEADER_BYTES = 1 << 16  # two dozen tensors take 2 KB; errors quote at most a few names

Tensors = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Call:
    """What a caller asks.

    Attributes:
        tensors: Inputs by name.
        request_id: The caller's; need not be unique.
        timeout_us: Time limit in microseconds; 0 for none.
    """

    tensors: Tensors
    request_id: str
    timeout_us: int


async def stream(path: Path, call: Call) -> AsyncGenerator[tuple[Tensors, bool], None]:
    """Ask the model behind a socket; closing the stream cancels the answer.

    Args:
        path: The model's socket.
        call: Its time begins now.

    Yields:
        All tensors of each response, and whether it is the last.

    Raises:
        DraftproofError: As the model raised it.
        EngineFailedError: The model's process is gone.
    """
    writer: asyncio.StreamWriter | None = None
    response: Tensors = {}
    is_final = False
    try:
        while not is_final:
            try:
                if writer is None:
                    reader, writer = await asyncio.open_unix_connection(path, limit=MAX_HEADER_BYTES)
                    header = {"request_id": call.request_id, "timeout_us": call.timeout_us}
                    writer.writelines(message(header, call.tensors))
                    await writer.drain()
                header, changed = await receive(reader)
            except (OSError, asyncio.IncompleteReadError) as error:
                raise EngineFailedError(
                    "the engine's process does not answer",
                    values=f"{path}: {error!r}",
                    limit="it must run as long as the server does",
                    remedy="read the server's log, then restart it with 'make stop serve'",
                ) from None
            if "error" in header:
                error_text = str(header["error"])
                raise from_wire(error_text) or EngineFailedError(error_text)
            is_final = bool(header["is_final"])
            response = {**response, **changed}
            yield response, is_final
    finally:
        if writer is not None:
            await closed(writer)


async def closed(writer: asyncio.StreamWriter) -> None:
    """Close a connection, whatever the other side does."""
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def message(header: Mapping[str, Any], tensors: Mapping[str, npt.NDArray[Any]]) -> list[bytes]:
    """The bytes of one message, in pieces."""
    parts = []
    described = []
    for name, array in tensors.items():
        if array.dtype == np.object_:  # one text
            data, dtype = bytes(array.reshape(-1)[0]), "text"
        else:
            data, dtype = array.tobytes(), array.dtype.str
        parts.append(data)
        described.append([name, dtype, list(array.shape), len(data)])
    return [json.dumps({**header, "tensors": described}).encode("utf-8") + b"\n", *parts]


async def receive(reader: asyncio.StreamReader) -> tuple[dict[str, Any], Tensors]:
    """The next message.

    Raises:
        asyncio.IncompleteReadError: The other side has gone.
    """
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
