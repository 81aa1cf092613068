"""Connects the gateway to Triton over its gRPC socket. Triton's own HTTP server is disabled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Any

import aiohttp
import grpc  # type: ignore[import-untyped]
from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2

from pipelines.deploy.triton.place import TritonPlace
from pipelines.errors import (
    DraftproofError,
    EngineFailedError,
    InvalidRequestError,
    RepositoryError,
    ServerUnavailableError,
    from_wire,
)
from pipelines.kserve_stream import read_to_the_end, responses_to
from pipelines.triton.gateway.spare_streams import SpareStreams

SERVICE = "/inference.GRPCInferenceService/"
OWN_PREFIX = "draftproof_"
"""Prefix of request parameters that only the gateway may send."""

KEY_PARAMETER = f"{OWN_PREFIX}key"
"""Request parameter with the server's key (``pipelines/triton/backend/header.py``)."""

_QUICK_S = 5.0
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
        self._methods: dict[str, Any] = {}
        open_stream = self._channel.stream_stream(f"{SERVICE}ModelStreamInfer")
        self._streams = SpareStreams(lambda: open_stream(metadata=self.metadata))

    async def close(self) -> None:
        """Close the connections."""
        self.end_spare_streams()
        await self._metrics.close()
        await self._channel.close(None)

    async def __aenter__(self) -> Triton:
        """Return this object."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        await self.close()

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Metadata with the key to Triton's APIs."""
        return self._place.metadata()

    @property
    def server_key(self) -> str:
        """The server's key, which models require from the gateway and the gateway from operators."""
        return self._place.server_key

    def unary(self, method: str) -> Any:
        """Return a method of KServe's service that takes and returns bytes; keywords as in grpc."""
        if method not in self._methods:
            self._methods[method] = self._channel.unary_unary(SERVICE + method)
        return self._methods[method]

    def stream(self) -> Any:
        """Return a ``ModelStreamInfer`` call that takes and returns bytes; the caller must end it."""
        return self._streams.take()

    def end_spare_streams(self) -> None:
        """Close the spare streams, so that Triton can shut down."""
        self._streams.close()

    async def responses(self, request: bytes) -> AsyncGenerator[Any, None]:
        """Send one request and stream each ``ModelStreamInferResponse``.

        Closing the generator cancels the request. An error is the last response.

        Args:
            request: A ``ModelInferRequest``.

        Raises:
            grpc.aio.AioRpcError: Triton has ended.
        """
        async with aclosing(responses_to(request, self.stream())) as arriving:
            async for raw in arriving:
                response = service_pb2.ModelStreamInferResponse.FromString(raw)
                if response.error_message:
                    await read_to_the_end(arriving)  # callers end with the error
                yield response

    async def is_live(self) -> bool:
        """Whether Triton answers at all."""
        request, kind = service_pb2.ServerLiveRequest(), service_pb2.ServerLiveResponse
        try:
            return bool((await self._ask("ServerLive", request, kind)).live)
        except grpc.aio.AioRpcError:
            return False

    async def is_ready(self, model: str) -> bool:
        """Whether a model is ready according to Triton."""
        request, kind = service_pb2.ModelReadyRequest(name=model), service_pb2.ModelReadyResponse
        try:
            return bool((await self._ask("ModelReady", request, kind)).ready)
        except grpc.aio.AioRpcError:
            return False

    async def index(self) -> list[dict[str, str]]:
        """Return name, version, state and reason of each model of the repository.

        Raises:
            ServerUnavailableError: Triton does not answer.
        """
        request, kind = service_pb2.RepositoryIndexRequest(), service_pb2.RepositoryIndexResponse
        try:
            reply = await self._ask("RepositoryIndex", request, kind)
        except grpc.aio.AioRpcError as error:
            raise _silent(error) from None
        return [MessageToDict(each) for each in reply.models]

    async def ready_models(self) -> set[str]:
        """Return the names of models that are ready according to Triton; none if it does not answer."""
        try:
            return {each["name"] for each in await self.index() if each.get("state") == "READY"}
        except ServerUnavailableError:
            return set()

    async def config(self, model: str) -> dict[str, Any]:
        """Return a model's configuration.

        Raises:
            InvalidRequestError: There is no such model.
            ServerUnavailableError: Triton does not answer.
        """
        request, kind = service_pb2.ModelConfigRequest(name=model), service_pb2.ModelConfigResponse
        try:
            reply = await self._ask("ModelConfig", request, kind)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                raise _silent(error) from None
            raise InvalidRequestError(
                "model not found",
                values=f"{str(error.details())[:200]}",
                limit="a model that is loaded",
                remedy="use a model that POST /v2/repository/index lists",
            ) from None
        document: dict[str, Any] = MessageToDict(reply.config, preserving_proto_field_name=True)
        return document

    async def control(self, model: str, action: str) -> None:
        """Load or unload a model of the repository.

        Args:
            model: Name of the model.
            action: "load" or "unload".

        Raises:
            RepositoryError: Triton refused; the message contains its reason.
            ServerUnavailableError: Triton does not answer.
        """
        kinds = {
            "load": (service_pb2.RepositoryModelLoadRequest, service_pb2.RepositoryModelLoadResponse),
            "unload": (service_pb2.RepositoryModelUnloadRequest, service_pb2.RepositoryModelUnloadResponse),
        }
        request, reply = kinds[action]
        try:
            await self._ask(
                f"RepositoryModel{action.capitalize()}", request(model_name=model), reply, timeout_s=_LOAD_S
            )
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE and "load" not in str(error.details()):
                raise _silent(error) from None
            raise RepositoryError(
                f"a model could not be {action}ed",
                values=f"{model}: {' '.join(str(error.details()).split())[:500]}",
                limit="a model of the repository that Triton can load",
                remedy="read the server's log; the models in service are unchanged",
            ) from None

    async def metrics(self) -> str:
        """Return Triton's metrics as text; empty if it does not answer."""
        try:
            async with self._metrics.get("/metrics") as reply:
                return await reply.text() if reply.status == 200 else ""
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError):
            return ""

    async def _ask(self, method: str, request: Any, kind: Any, timeout_s: float = _QUICK_S) -> Any:
        raw = request.SerializeToString()
        return kind.FromString(await self.unary(method)(raw, metadata=self.metadata, timeout=timeout_s))


def says_that_a_process_is_silent(error: str) -> bool:
    """Whether Triton reports that a model's process did not accept a request.

    Triton sends this error within 2 s if the process is paused or has ended.
    """
    return "is not healthy" in error


def error_behind(message: str) -> DraftproofError:
    """Return the error for an error message: ours, or otherwise usually an invalid request."""
    if says_that_a_process_is_silent(message):
        return EngineFailedError(
            "the model's process does not accept the request",
            values=message[:200],
            limit="the process is replaced if it stays silent",
            remedy="send the request again",
        )
    return from_wire(message) or InvalidRequestError(
        "Triton refused the request",
        values=message[:500],
        limit="the request must match the model's configuration",
        remedy="compare the request with GET /v2/models/<model>/config",
    )


def _silent(error: Any) -> ServerUnavailableError:
    return ServerUnavailableError(
        "Triton does not answer",
        values=f"{error.code().name}: {str(error.details())[:200]}",
        limit="it is starting, stopping or restarting",
        remedy="send the request again in a few seconds",
    )
