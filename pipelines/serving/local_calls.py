"""Calls between two models of one server over a Unix socket: tensors there, tensors or an error back.

Stands in for BLS, which cannot be used for this: Triton's Python backend (2.51, and still in July 2026)
turns the responses of decoupled models into Python objects on a thread without Python's lock
(``Stub::ProcessBLSResponseDecoupled``), and the process crashes, under Python 3.12 within a few calls.
Here a caller that goes away is noticed too, and so is an engine whose process has died.

A message is a line of JSON, which describes the tensors and says how many bytes they have, and these.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipelines.errors import DraftproofError, EngineFailedError, from_wire

MAX_HEADER_BYTES = 1 << 16  # a dozen tensors take 1 KB; errors quote at most a few names

Tensors = dict[str, npt.NDArray[Any]]
Answer = Callable[[Tensors, str, int], Awaitable[Mapping[str, npt.NDArray[Any]]]]
"""Tensors, request id, time limit in microseconds (0 for none) to the tensors of the whole answer."""


async def serve_calls(
    path: Path, answer: Answer, describe: Callable[[BaseException], str]
) -> asyncio.AbstractServer:
    """Answer calls on a socket from now on, each in a task of its own on the running loop.

    Args:
        path: The socket; only this user may connect.
        answer: Is cancelled when its caller has gone.
        describe: Text for the caller of an error that ``answer`` raised.

    Returns:
        What listens; close it at the end.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            header, tensors = await _receive(reader)
            answering = asyncio.ensure_future(
                answer(tensors, str(header["request_id"]), int(header["timeout_us"]))
            )
            leaving = asyncio.ensure_future(reader.read(1))
            try:
                await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
                if answering.done():
                    await _send_answer(writer, answering, describe)
            finally:
                answering.cancel()
                leaving.cancel()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the caller has gone
        finally:
            writer.close()

    path.unlink(missing_ok=True)
    server = await asyncio.start_unix_server(serve, path, limit=MAX_HEADER_BYTES)
    path.chmod(0o600)
    return server


async def call(
    path: Path, tensors: Mapping[str, npt.NDArray[Any]], request_id: str, timeout_us: int
) -> Tensors:
    """Ask the model behind a socket; cancelling the call cancels the answer.

    Raises:
        DraftproofError: As the model raised it.
        EngineFailedError: The model's process is gone.
    """
    writer: asyncio.StreamWriter | None = None
    try:
        reader, writer = await asyncio.open_unix_connection(path, limit=MAX_HEADER_BYTES)
        await _send(writer, {"request_id": request_id, "timeout_us": timeout_us}, tensors)
        header, answer = await _receive(reader)
    except (OSError, asyncio.IncompleteReadError) as error:
        raise EngineFailedError(
            "the engine's process does not answer",
            values=f"{path}: {error!r}",
            limit="it must run as long as the server does",
            remedy="read the server's log, then restart it with 'make stop serve'",
        ) from None
    finally:
        if writer is not None:
            writer.close()
    if "error" in header:
        message = str(header["error"])
        raise from_wire(message) or EngineFailedError(message)
    return answer


async def _send_answer(
    writer: asyncio.StreamWriter,
    answering: asyncio.Future[Mapping[str, npt.NDArray[Any]]],
    describe: Callable[[BaseException], str],
) -> None:
    try:
        tensors = answering.result()
    except Exception as error:
        message = error.to_wire() if isinstance(error, DraftproofError) else describe(error)
        await _send(writer, {"error": message}, {})
    else:
        await _send(writer, {}, tensors)


async def _send(
    writer: asyncio.StreamWriter, header: dict[str, Any], tensors: Mapping[str, npt.NDArray[Any]]
) -> None:
    parts = []
    described = []
    for name, array in tensors.items():
        if array.dtype == np.object_:  # one text
            data, dtype = bytes(array.reshape(-1)[0]), "text"
        else:
            data, dtype = array.tobytes(), array.dtype.str
        parts.append(data)
        described.append([name, dtype, list(array.shape), len(data)])
    writer.write(json.dumps({**header, "tensors": described}).encode("utf-8") + b"\n")
    writer.writelines(parts)
    await writer.drain()


async def _receive(reader: asyncio.StreamReader) -> tuple[dict[str, Any], Tensors]:
    header: dict[str, Any] = json.loads(await reader.readuntil(b"\n"))
    tensors: Tensors = {}
    for name, dtype, shape, num_bytes in header["tensors"]:
        data = await reader.readexactly(num_bytes)
        if dtype == "text":
            tensors[name] = np.array([data], dtype=np.object_).reshape(shape)
        else:
            tensors[name] = np.frombuffer(data, dtype=np.dtype(dtype)).reshape(shape)
    return header, tensors
