"""Relays a ``ModelStreamInfer`` call: checks each request and forwards Triton's responses.

Triton never ends a request whose model's process has died. So the gateway tracks pending requests by model
and id and sends an error for each when its model or Triton has died.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2

from pipelines.errors import DraftproofError
from pipelines.triton.gateway.messages import grpc_messages
from pipelines.triton.gateway.open_calls import OpenCalls
from pipelines.triton.gateway.triton import Triton, error_behind
from pipelines.triton.supervision.health import Health

Checked = Callable[[bytes], Awaitable[tuple[Any, bytes]]]
"""Checks a request; returns the message and the bytes for Triton."""


class RelayedStream:
    """Relays the requests and responses of one call.

    Args:
        triton: Connections to Triton.
        health: State of Triton and its models.
        calls: Tracks open requests.
        check: Checks each request.
        write: Sends a message to the client.
    """

    def __init__(
        self,
        triton: Triton,
        health: Health,
        calls: OpenCalls,
        check: Checked,
        write: Callable[[bytes], Awaitable[None]],
    ) -> None:
        self._triton = triton
        self._health = health
        self._calls = calls
        self._check = check
        self._write_now = write
        self._writing = asyncio.Lock()  # gRPC accepts one message at a time
        self._waiting: dict[tuple[str, str], deque[Callable[[], None]]] = {}
        self._upstream: Any = None
        self._responses: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_abandoned = False  # Triton will not end this call
        self._changed = asyncio.Event()

    async def run(self, requests: AsyncIterator[bytes]) -> None:
        """Relay until the client has sent all requests and received all answers."""
        try:
            async for raw in requests:
                await self._take(raw)
            if self._upstream is not None:
                await self._done_writing()
            while self._waiting or (self._responses is not None and not self._is_abandoned):
                self._changed.clear()
                await self._changed.wait()
            while self._tasks:
                await asyncio.gather(*self._tasks)
        finally:
            for ends in self._waiting.values():
                for end in ends:
                    end()
            if self._upstream is not None:
                self._upstream.cancel()  # has no effect if it has ended
            if self._responses is not None:
                self._responses.cancel()

    async def _take(self, raw: bytes) -> None:
        request_id = ""
        try:
            message, raw = await self._check(raw)
            request_id, model = message.id, message.model_name
            end = self._calls.begin(model, lambda error: self._abandon(model, request_id, error))
        except DraftproofError as error:
            await self._fail(request_id or grpc_messages.read_id(raw), error)
            return
        self._waiting.setdefault((model, request_id), deque()).append(end)
        if self._upstream is None:
            self._upstream = self._triton.stream()
            self._responses = asyncio.create_task(self._pass_on(self._upstream))
        with contextlib.suppress(
            grpc.aio.AioRpcError, asyncio.InvalidStateError
        ):  # the responses' end tells why
            await self._upstream.write(raw)

    async def _done_writing(self) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self._upstream.done_writing()

    async def _pass_on(self, upstream: Any) -> None:
        try:
            async for raw in upstream:
                response = service_pb2.ModelStreamInferResponse.FromString(raw)
                answer = response.infer_response
                if response.error_message:
                    response.error_message = error_behind(response.error_message).to_wire()
                    raw = response.SerializeToString()
                else:
                    self._calls.hear(answer.model_name)
                is_last = response.error_message or answer.parameters["triton_final_response"].bool_param
                if not is_last or self._ended(answer.model_name, answer.id):
                    await self._write(raw)
            error: DraftproofError = self._health.triton_ended("the stream ended")
        except grpc.aio.AioRpcError as broken:
            error = self._health.triton_ended(f"{broken.code().name}: {str(broken.details())[:200]}")
        # Pending requests will get no answer on this call; the next request opens a new one.
        self._upstream = self._responses = None
        for model, request_id in [key for key, ends in self._waiting.items() for _ in ends]:
            self._ended(model, request_id)
            await self._fail(request_id, error)
        self._changed.set()

    def _ended(self, model: str, request_id: str) -> bool:
        """Record the last response to a request; False if it has already been ended here."""
        key = (model, request_id)
        if key not in self._waiting:  # Triton's own errors may contain neither model nor id
            if self._is_abandoned or not self._waiting:
                return not self._is_abandoned
            key = next(iter(self._waiting))
        ends = self._waiting[key]
        ends.popleft()()
        if not ends:
            del self._waiting[key]
        self._changed.set()
        return True

    def _abandon(self, model: str, request_id: str, error: DraftproofError) -> None:
        self._is_abandoned = True
        if (model, request_id) in self._waiting:
            self._ended(model, request_id)
            task = asyncio.create_task(self._fail(request_id, error))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _fail(self, request_id: str, error: DraftproofError) -> None:
        response = service_pb2.ModelStreamInferResponse(error_message=error.to_wire())
        response.infer_response.id = request_id
        await self._write(response.SerializeToString())

    async def _write(self, raw: bytes) -> None:
        async with self._writing:
            await self._write_now(raw)
