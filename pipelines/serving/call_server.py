"""The called side of ``local_calls``: takes calls on a thread of its own and sends what is answered.

The thread that steps the engines only hands responses over; they become bytes and leave while the
engines work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from pipelines.errors import DraftproofError
from pipelines.executor.step_loop import StepLoop
from pipelines.serving.local_calls import MAX_HEADER_BYTES, Call, Tensors, closed, message, receive
from pipelines.serving.responder import Outlet
from pipelines.serving.triton_wire import is_same

Begin = Callable[[Call, Outlet], None]
"""Starts to answer and returns at once; raises nothing."""


class CallServer:
    """Listens on a socket until it is closed.

    Args:
        path: The socket; only this user may connect.
        begin: Called for each call, on the thread of this server.
    """

    def __init__(self, path: Path, begin: Begin) -> None:
        self._begin = begin
        self._thread = StepLoop(())
        self._thread.start()
        self._thread.spawn(self._listen(path)).result()

    def close(self) -> None:
        """Send what was given; who waits for more is told by the end of the connection."""
        self._thread.spawn(self._stop_listening()).result()
        self._thread.stop()

    async def _listen(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, path, limit=MAX_HEADER_BYTES)
        path.chmod(0o600)

    async def _stop_listening(self) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        outlet = _SocketOutlet(writer)
        try:
            header, tensors = await receive(reader)
            self._begin(Call(tensors, str(header["request_id"]), int(header["timeout_us"])), outlet)
            await reader.read(1)  # returns when the caller closes: after the last response, or before
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the caller has gone
        finally:
            outlet.leave()
            await closed(writer)


class _SocketOutlet:
    """An ``Outlet``; all that it keeps is touched by the loop of its thread alone."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._loop = asyncio.get_running_loop()
        self._writer = writer
        self._sent: Tensors = {}
        self._is_gone = False
        self._on_gone: Callable[[], object] | None = None

    def send(self, outputs: Mapping[str, npt.NDArray[Any]], *, is_final: bool) -> None:
        """Take one response."""
        self._loop.call_soon_threadsafe(self._send, outputs, is_final)

    def fail(self, error: DraftproofError) -> None:
        """Take an error as the last response."""
        self._loop.call_soon_threadsafe(self._write, {"error": error.to_wire()}, {})

    def finish(self) -> None:
        """End without a response."""
        self._loop.call_soon_threadsafe(self._writer.close)

    def watch(self, on_gone: Callable[[], object]) -> None:
        """The socket tells when the caller has gone."""
        self._loop.call_soon_threadsafe(self._begin_to_watch, on_gone)

    def leave(self) -> None:
        """Say that the caller has gone; after the last response it means nothing."""
        self._is_gone = True
        if self._on_gone is not None:
            self._on_gone()

    def _begin_to_watch(self, on_gone: Callable[[], object]) -> None:
        self._on_gone = on_gone
        if self._is_gone:
            on_gone()

    def _send(self, outputs: Mapping[str, npt.NDArray[Any]], is_final: bool) -> None:
        changed = {
            name: array
            for name, array in outputs.items()
            if name not in self._sent or not is_same(self._sent[name], array)
        }
        self._sent.update(changed)
        self._write({"is_final": is_final}, changed)

    def _write(self, header: Mapping[str, Any], tensors: Mapping[str, npt.NDArray[Any]]) -> None:
        # Not waited for: an answer is bounded, and callers are models of this server that read at once.
        if not self._is_gone:
            self._writer.writelines(message(header, tensors))
