"""Serves clients over gRPC with the subset of KServe's methods that they need."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2

from pipelines.deploy import served_files
from pipelines.deploy.identity import ServerIdentity
from pipelines.deploy.served_files import ServedFiles
from pipelines.errors import DraftproofError, InvalidRequestError
from pipelines.triton.gateway.relay import CheckedRequest, Relay
from pipelines.triton.gateway.request_checks import MAX_BODY_BYTES, parse
from pipelines.triton.gateway.triton import KEY_HEADER, error_of, status_of

_SERVICE = "/inference.GRPCInferenceService/"
_HEALTH = "/grpc.health.v1.Health/Check"
_SERVING, _NOT_SERVING = b"\x08\x01", b"\x08\x02"  # HealthCheckResponse{status}
_MAX_PENDING = 1 << 16  # calls that wait to be handled; further ones get ``server_busy``
_MESSAGE_ROOM_BYTES = 1 << 16  # for everything but the tensors


class GrpcServer:
    """Answers gRPC requests by asking Triton.

    Args:
        relay: Sends requests to Triton.
        directory: Run directory whose model is described to front doors of several servers.
    """

    def __init__(self, relay: Relay, directory: Path) -> None:
        self._relay = relay
        self._directory = directory

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
        methods: dict[str, Callable[[bytes, Any], Awaitable[Any]]] = {
            _HEALTH: self._check_health,
            f"{_SERVICE}ServerLive": self._live,
            f"{_SERVICE}ServerReady": self._ready,
            f"{_SERVICE}ModelReady": self._model_ready,
            f"{_SERVICE}ServerMetadata": self._describe_server,
            f"{_SERVICE}ModelMetadata": self._describe,
            f"{_SERVICE}ModelConfig": self._configuration,
            f"{_SERVICE}ModelInfer": self._infer,
            served_files.METHOD: self._describe_model,
        }
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(partial(_answered, method))
            for name, method in methods.items()
        }
        stream = grpc.stream_stream_rpc_method_handler(self._stream_infer)
        server.add_generic_rpc_handlers((_Methods({**handlers, f"{_SERVICE}ModelStreamInfer": stream}),))
        server.add_insecure_port(address)
        await server.start()
        return server

    async def _check_health(self, raw: bytes, context: Any) -> bytes:
        return _SERVING if await self._relay.supervisor.is_ready() else _NOT_SERVING

    async def _live(self, raw: bytes, context: Any) -> Any:
        return service_pb2.ServerLiveResponse(live=True)

    async def _ready(self, raw: bytes, context: Any) -> Any:
        return service_pb2.ServerReadyResponse(ready=await self._relay.supervisor.is_ready())

    async def _model_ready(self, raw: bytes, context: Any) -> Any:
        asked = parse(raw, service_pb2.ModelReadyRequest).name
        is_ready = await self._relay.supervisor.is_model_ready(self._relay.model_of(asked))
        return service_pb2.ModelReadyResponse(ready=is_ready)

    async def _describe_server(self, raw: bytes, context: Any) -> Any:
        document = await self._relay.triton.ask("ServerMetadata")
        document.extensions.append((await asyncio.to_thread(ServerIdentity.read, self._directory)).extension)
        return document

    async def _describe_model(self, raw: bytes, context: Any) -> bytes:
        return (await asyncio.to_thread(ServedFiles.read, self._directory)).to_wire()

    async def _describe(self, raw: bytes, context: Any) -> Any:
        asked = parse(raw, service_pb2.ModelMetadataRequest)
        is_operator = self._is_operator(context)
        return await self._relay.metadata(asked.name, asked.version, is_operator=is_operator)

    async def _configuration(self, raw: bytes, context: Any) -> Any:
        asked = parse(raw, service_pb2.ModelConfigRequest)
        is_operator = self._is_operator(context)
        return await self._relay.configuration(asked.name, asked.version, is_operator=is_operator)

    async def _infer(self, raw: bytes, context: Any) -> Any:
        request = await self._checked(raw, self._is_operator(context))
        return await self._relay.one_response(request)

    async def _stream_infer(self, requests: AsyncIterator[bytes], context: Any) -> None:
        """Answer each request of a stream while the client may send more."""
        is_operator = self._is_operator(context)
        writing = asyncio.Lock()  # gRPC accepts one message at a time

        async def write(message: Any) -> None:
            async with writing:
                sending = asyncio.ensure_future(context.write(message.SerializeToString()))
                try:
                    await asyncio.shield(sending)
                finally:
                    await sending  # gRPC continues it even if this request has been cancelled

        async def write_response(response: Any) -> None:
            await write(service_pb2.ModelStreamInferResponse(infer_response=response))

        async def write_error(request_id: str, error: DraftproofError) -> None:
            message = service_pb2.ModelStreamInferResponse(error_message=error.to_wire())
            message.infer_response.id = request_id
            await write(message)

        async def answer(request: CheckedRequest) -> None:
            try:
                await self._relay.stream(request, write_response)
            except DraftproofError as error:
                await write_error(request.message.id, error)

        tasks: set[asyncio.Task[None]] = set()
        try:
            async for raw in requests:
                try:
                    request = await self._checked(raw, is_operator)
                except DraftproofError as error:
                    await write_error(_id_of(raw), error)
                    continue
                tasks.add(task := asyncio.create_task(answer(request)))
                task.add_done_callback(tasks.discard)
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _checked(self, raw: bytes, is_operator: bool) -> CheckedRequest:
        return await self._relay.check(lambda: parse(raw), len(raw), is_operator=is_operator)

    def _is_operator(self, context: Any) -> bool:
        return self._relay.triton.is_server_key(
            str(dict(context.invocation_metadata() or ()).get(KEY_HEADER, ""))
        )


class _Methods(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Finds the handler of a method; all other methods are refused."""

    def __init__(self, handlers: dict[str, Any]) -> None:
        self._handlers = handlers
        self._closed = grpc.stream_stream_rpc_method_handler(_refuse)  # accepts calls of every kind

    def service(self, handler_call_details: Any) -> Any:
        return self._handlers.get(handler_call_details.method, self._closed)


async def _answered(method: Callable[[bytes, Any], Awaitable[Any]], raw: bytes, context: Any) -> bytes:
    """Return the bytes of a method's response, or end the call with its error."""
    try:
        response = await method(raw, context)
    except DraftproofError as error:
        response = await context.abort(status_of(error)[0], error.to_wire())
    except grpc.aio.AioRpcError as error:
        response = await context.abort(error.code(), error_of(error).to_wire())
    return response if isinstance(response, bytes) else bytes(response.SerializeToString())


async def _refuse(requests: AsyncIterator[bytes], context: Any) -> None:
    error = InvalidRequestError(
        "method not allowed", "use one for health, metadata, configuration or inference"
    )
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, error.to_wire())


def _id_of(raw: bytes) -> str:
    """Return the id of a refused request; "" for bytes that cannot be parsed."""
    try:
        return str(parse(raw).id)
    except InvalidRequestError:
        return ""
