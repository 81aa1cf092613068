"""Serves clients over gRPC with the subset of KServe's methods that they need."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2

from pipelines.deploy import served_files
from pipelines.deploy.identity import ServerIdentity
from pipelines.deploy.served_files import ServedFiles
from pipelines.errors import (
    DraftproofError,
    InvalidRequestError,
    ProcessEndedError,
    RequestCancelledError,
    RequestTimeoutError,
    ServerBusyError,
    ServerUnavailableError,
)
from pipelines.triton.gateway.grpc_stream import RelayedStream
from pipelines.triton.gateway.http_errors import KEY_HEADER
from pipelines.triton.gateway.messages import grpc_messages
from pipelines.triton.gateway.messages.inference_checks import LARGE_BODY_BYTES, MAX_BODY_BYTES, check_model
from pipelines.triton.gateway.one_response import one_response
from pipelines.triton.gateway.open_calls import OpenCalls
from pipelines.triton.gateway.triton import SERVICE, Triton, error_behind
from pipelines.triton.supervision.health import Health

_HEALTH = "/grpc.health.v1.Health/Check"
_SERVING, _NOT_SERVING = b"\x08\x01", b"\x08\x02"  # HealthCheckResponse{status}
_MAX_PENDING = 1 << 16  # calls that wait to be handled; further ones get ``server_busy``
_MESSAGE_ROOM_BYTES = 1 << 16  # for everything but the tensors
_CODES: tuple[tuple[type[DraftproofError], grpc.StatusCode], ...] = (
    (InvalidRequestError, grpc.StatusCode.INVALID_ARGUMENT),
    (ServerBusyError, grpc.StatusCode.UNAVAILABLE),
    (ServerUnavailableError, grpc.StatusCode.UNAVAILABLE),
    (ProcessEndedError, grpc.StatusCode.UNAVAILABLE),
    (RequestTimeoutError, grpc.StatusCode.DEADLINE_EXCEEDED),
    (RequestCancelledError, grpc.StatusCode.CANCELLED),
)


class GrpcServer:
    """Answers gRPC requests by forwarding them to Triton.

    Args:
        triton: Connections to Triton.
        health: State of Triton and its models.
        calls: Tracks open requests.
        identity: Published with the server's metadata; None to publish none.
        directory: Run directory whose model is described to front doors of a fleet; None to describe none.
    """

    def __init__(
        self,
        triton: Triton,
        health: Health,
        calls: OpenCalls,
        identity: ServerIdentity | None = None,
        directory: Path | None = None,
    ) -> None:
        self._triton = triton
        self._identity = identity
        self._directory = directory
        self._health = health
        self._calls = calls

    async def start(self, address: str) -> Any:
        """Start a gRPC server on ``host:port`` and return it.

        Raises:
            RuntimeError: The address cannot be listened on.
        """
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", MAX_BODY_BYTES + _MESSAGE_ROOM_BYTES),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
                # By default gRPC randomly drops calls above 1,000, without an error of ours.
                ("grpc.server.max_pending_requests", _MAX_PENDING),
                ("grpc.server.max_pending_requests_hard_limit", _MAX_PENDING),
            ]
        )
        server.add_generic_rpc_handlers((_Methods(self._methods()),))
        server.add_insecure_port(address)
        await server.start()
        return server

    def _methods(self) -> dict[str, Any]:
        unary = grpc.unary_unary_rpc_method_handler
        return {
            _HEALTH: unary(self._check_health),
            f"{SERVICE}ServerLive": unary(self._live),
            f"{SERVICE}ServerReady": unary(self._ready),
            f"{SERVICE}ModelReady": unary(self._model_ready),
            f"{SERVICE}ServerMetadata": unary(self._describe_server),
            f"{SERVICE}ModelMetadata": unary(self._describe),
            f"{SERVICE}ModelConfig": unary(self._configuration),
            f"{SERVICE}ModelInfer": unary(self._infer),
            f"{SERVICE}ModelStreamInfer": grpc.stream_stream_rpc_method_handler(self._stream_infer),
            served_files.METHOD: unary(self._describe_model),
        }

    async def _check_health(self, raw: bytes, context: Any) -> bytes:
        return _SERVING if await self._health.is_ready() else _NOT_SERVING

    async def _live(self, raw: bytes, context: Any) -> bytes:
        return _bytes(service_pb2.ServerLiveResponse(live=True))

    async def _ready(self, raw: bytes, context: Any) -> bytes:
        return _bytes(service_pb2.ServerReadyResponse(ready=await self._health.is_ready()))

    async def _model_ready(self, raw: bytes, context: Any) -> bytes:
        message = await _read(service_pb2.ModelReadyRequest, raw, context)
        is_ready = await self._health.is_model_ready(message.name)
        return _bytes(service_pb2.ModelReadyResponse(ready=is_ready))

    async def _describe_server(self, raw: bytes, context: Any) -> bytes:
        reply = await self._ask("ServerMetadata", _bytes(service_pb2.ServerMetadataRequest()), context)
        if self._identity is None:
            return reply
        document = service_pb2.ServerMetadataResponse.FromString(reply)
        document.extensions.append(self._identity.extension)
        return _bytes(document)

    async def _describe_model(self, raw: bytes, context: Any) -> bytes:
        if self._directory is None:
            return await _abort(context, _closed())
        try:
            return (await asyncio.to_thread(ServedFiles.read, self._directory)).to_wire()
        except DraftproofError as error:
            return await _abort(context, error)

    async def _describe(self, raw: bytes, context: Any) -> bytes:
        message = await _read(service_pb2.ModelMetadataRequest, raw, context)
        await self._check_model(message.name, context)
        return await self._ask("ModelMetadata", _bytes(message), context)

    async def _configuration(self, raw: bytes, context: Any) -> bytes:
        message = await _read(service_pb2.ModelConfigRequest, raw, context)
        await self._check_model(message.name, context)
        reply = await self._ask("ModelConfig", _bytes(message), context)
        if self._is_operator(context):
            return reply
        document = service_pb2.ModelConfigResponse.FromString(reply)
        document.config.ClearField("parameters")  # they contain paths of this machine
        return _bytes(document)

    async def _infer(self, raw: bytes, context: Any) -> bytes:
        try:
            message, raw = await self._checked(raw, self._is_operator(context))
            answering = one_response(self._triton, self._calls, message, raw)
            return _bytes(await self._calls.run(message.model_name, answering))
        except DraftproofError as error:
            return await _abort(context, error)
        except grpc.aio.AioRpcError as error:
            return await self._abort_broken(context, error)

    async def _stream_infer(self, requests: AsyncIterator[bytes], context: Any) -> None:
        is_operator = self._is_operator(context)
        stream = RelayedStream(
            self._triton,
            self._health,
            self._calls,
            lambda raw: self._checked(raw, is_operator),
            context.write,
        )
        await stream.run(requests)

    async def _checked(self, raw: bytes, is_operator: bool) -> tuple[Any, bytes]:
        """Check a ``ModelInferRequest``; returns the message and the bytes for Triton."""

        def check() -> tuple[Any, bytes]:
            message = grpc_messages.parse(raw)
            return message, grpc_messages.check(message, self._triton.server_key, is_operator=is_operator)

        message, checked = check() if len(raw) < LARGE_BODY_BYTES else await asyncio.to_thread(check)
        self._health.check_open(message.model_name)
        return message, checked

    async def _ask(self, method: str, raw: bytes, context: Any) -> bytes:
        try:
            reply: bytes = await self._triton.unary(method)(
                raw, metadata=self._triton.metadata, timeout=context.time_remaining()
            )
            return reply
        except grpc.aio.AioRpcError as error:
            return await self._abort_broken(context, error)

    async def _abort_broken(self, context: Any, error: Any) -> bytes:
        """End a call with the error behind an error of Triton's."""
        details = str(error.details() or "")
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            return await _abort(context, self._health.triton_ended(details))
        return bytes(await context.abort(error.code(), error_behind(details).to_wire()))

    async def _check_model(self, model: str, context: Any) -> None:
        try:
            check_model(model, is_operator=self._is_operator(context))
        except InvalidRequestError as error:
            await _abort(context, error)

    def _is_operator(self, context: Any) -> bool:
        given = dict(context.invocation_metadata() or ()).get(KEY_HEADER, "")
        return hmac.compare_digest(str(given).encode(), self._triton.server_key.encode())


class _Methods(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Finds the handler of a method; all other methods are refused."""

    def __init__(self, handlers: dict[str, Any]) -> None:
        self._handlers = handlers
        self._closed = grpc.stream_stream_rpc_method_handler(_refuse)  # accepts calls of every kind

    def service(self, handler_call_details: Any) -> Any:
        return self._handlers.get(handler_call_details.method, self._closed)


async def _refuse(requests: AsyncIterator[bytes], context: Any) -> None:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, _closed().to_wire())


def _closed() -> InvalidRequestError:
    return InvalidRequestError(
        "method not allowed",
        limit="health, metadata, configuration and inference",
        remedy="use one of these methods; load models over HTTP with the server's key",
    )


async def _read(kind: Any, raw: bytes, context: Any) -> Any:
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    try:
        return kind.FromString(raw)
    except DecodeError:
        return await _abort(context, grpc_messages.unreadable(raw))


async def _abort(context: Any, error: DraftproofError) -> bytes:
    code = next((code for kind, code in _CODES if isinstance(error, kind)), grpc.StatusCode.INTERNAL)
    return bytes(await context.abort(code, error.to_wire()))


def _bytes(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data
