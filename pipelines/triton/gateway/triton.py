"""Connects the gateway to Triton over its gRPC socket. Triton's own HTTP server is disabled."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import aiohttp
import grpc  # type: ignore[import-untyped]
from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2, service_pb2_grpc

from pipelines.deploy.triton.place import TritonPlace
from pipelines.errors import (
    DraftproofError,
    EngineFailedError,
    ForbiddenError,
    InvalidRequestError,
    ProcessEndedError,
    RepositoryError,
    RequestCancelledError,
    RequestTimeoutError,
    ServerBusyError,
    ServerUnavailableError,
    from_wire,
)
from pipelines.kserve_stream import read_to_the_end, responses_to

KEY_HEADER = "draftproof-key"
"""HTTP header and gRPC metadata with which operators send the server's key."""

_STATUSES = (
    (InvalidRequestError, grpc.StatusCode.INVALID_ARGUMENT, 400),
    (ForbiddenError, grpc.StatusCode.PERMISSION_DENIED, 403),
    (ServerBusyError, grpc.StatusCode.UNAVAILABLE, 503),
    (ServerUnavailableError, grpc.StatusCode.UNAVAILABLE, 503),
    (ProcessEndedError, grpc.StatusCode.UNAVAILABLE, 503),
    (RequestTimeoutError, grpc.StatusCode.DEADLINE_EXCEEDED, 504),
    (RequestCancelledError, grpc.StatusCode.CANCELLED, 500),
)
_QUICK_S = 5.0
_SILENT = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
_LOAD_S = 1800.0  # engines of TensorRT-LLM, as pipelines/deploy/triton/launch.py waits
_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
]


class Triton:
    """Connections to a Triton that may be restarted. Used on one event loop.

    Args:
        place: Sockets of Triton.
    """

    def __init__(self, place: TritonPlace) -> None:
        self._place = place
        self._metrics = aiohttp.ClientSession(
            "http://triton",
            connector=aiohttp.UnixConnector(place.metrics),
            timeout=aiohttp.ClientTimeout(total=_QUICK_S),
        )
        self._channel = grpc.aio.insecure_channel(place.grpc, options=_OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._metrics.close()
        await self._channel.close(None)

    @property
    def server_key(self) -> str:
        """The server's key, which models require from the gateway and the gateway from operators."""
        return self._place.server_key

    def is_server_key(self, text: str) -> bool:
        """Whether a client sent the server's key."""
        return hmac.compare_digest(text.encode("utf-8", "surrogateescape"), self.server_key.encode())

    async def ask(self, method: str, timeout_s: float | None = _QUICK_S, **fields: Any) -> Any:
        """Call a method of KServe's service that has one response.

        Args:
            method: Its name, such as "ModelMetadata".
            timeout_s: Maximum time; None for any.
            **fields: Fields of its request.

        Raises:
            grpc.aio.AioRpcError: Triton refused or does not answer.
        """
        request = getattr(service_pb2, f"{method}Request")(**fields)
        call = getattr(self._stub, method)
        return await call(request, timeout=timeout_s)

    async def responses(self, request: Any) -> AsyncGenerator[Any, None]:
        """Send one ``ModelInferRequest`` and stream each ``ModelStreamInferResponse``.

        Closing the generator cancels the request. An error is the last response.

        Raises:
            grpc.aio.AioRpcError: Triton has ended.
        """
        call = self._stub.ModelStreamInfer()
        async with aclosing(responses_to(request, call)) as arriving:
            async for response in arriving:
                if response.error_message:
                    await read_to_the_end(arriving)  # callers end with the error
                yield response

    async def is_live(self) -> bool:
        """Whether Triton answers at all."""
        try:
            return bool((await self.ask("ServerLive")).live)
        except grpc.aio.AioRpcError:
            return False

    async def is_ready(self, model: str) -> bool:
        """Whether a model is ready according to Triton."""
        try:
            return bool((await self.ask("ModelReady", name=model)).ready)
        except grpc.aio.AioRpcError:
            return False

    async def index(self) -> list[dict[str, str]]:
        """Return name, version, state and reason of each model of the repository.

        Raises:
            ServerUnavailableError: Triton does not answer.
        """
        try:
            reply = await self.ask("RepositoryIndex")
        except grpc.aio.AioRpcError as error:
            raise triton_unavailable(f"{error.code().name}: {str(error.details())[:200]}") from None
        return [MessageToDict(each) for each in reply.models]

    async def ready_models(self) -> set[str]:
        """Return the names of models that are ready according to Triton; none if it does not answer."""
        try:
            return {each["name"] for each in await self.index() if each.get("state") == "READY"}
        except ServerUnavailableError:
            return set()

    async def datatypes(self, model: str) -> dict[str, str]:
        """Return KServe's type name of each input of a model.

        Raises:
            InvalidRequestError: There is no such model.
            ServerUnavailableError: Triton does not answer.
        """
        try:
            return {each.name: each.datatype for each in (await self.ask("ModelMetadata", name=model)).inputs}
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from None

    async def control(self, model: str, action: str) -> None:
        """Load or unload a model of the repository.

        Args:
            model: Name of the model.
            action: "load" or "unload".

        Raises:
            RepositoryError: Triton refused; the message contains its reason.
            ServerUnavailableError: Triton does not answer.
        """
        try:
            await self.ask(f"RepositoryModel{action.capitalize()}", _LOAD_S, model_name=model)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE and "load" not in str(error.details()):
                raise error_of(error) from None
            raise RepositoryError(
                f"the model {model} could not be {action}ed: {' '.join(str(error.details()).split())[:500]}",
                "read the server's log",
            ) from None

    async def metrics(self) -> str:
        """Return Triton's metrics as text; empty if it does not answer."""
        try:
            async with self._metrics.get("/metrics") as reply:
                return await reply.text() if reply.status == 200 else ""
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError):
            return ""


def says_that_a_process_is_silent(error: str) -> bool:
    """Whether Triton reports that a model's process did not accept a request.

    Triton sends this error within 2 s if the process is paused or has ended.
    """
    return "is not healthy" in error


def error_behind(message: str) -> DraftproofError:
    """Return the error for an error message: ours, or otherwise usually an invalid request."""
    if says_that_a_process_is_silent(message):
        return EngineFailedError(
            f"the model's process does not accept the request: {message[:200]}", "send the request again"
        )
    return from_wire(message) or InvalidRequestError(
        f"Triton refused the request: {message[:500]}",
        "compare the request with GET /v2/models/<model>/config",
    )


def error_of(error: Any) -> DraftproofError:
    """Return the error for a ``grpc.aio.AioRpcError`` of a call to Triton."""
    details = str(error.details() or "")
    if error.code() in _SILENT and from_wire(details) is None:
        return triton_unavailable(f"{error.code().name}: {details[:200]}")
    return error_behind(details)


def status_of(error: DraftproofError) -> tuple[grpc.StatusCode, int]:
    """Return the codes of gRPC and HTTP with which a client gets an error."""
    found = (codes for kind, *codes in _STATUSES if isinstance(error, kind))
    code, status = next(found, (grpc.StatusCode.INTERNAL, 500))
    return code, status


def triton_unavailable(why: str) -> ServerUnavailableError:
    """Return the error of a request that Triton does not answer."""
    return ServerUnavailableError(
        f"Triton does not answer: {why}", "send the request again in a few seconds, when it has started again"
    )
