"""Serves clients over HTTP with the subset of Triton's paths that they need."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc  # type: ignore[import-untyped]
from aiohttp import web
from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2

from pipelines.errors import (
    DraftproofError,
    InvalidRequestError,
    from_wire,
)
from pipelines.time_limit import within
from pipelines.triton.gateway.http_errors import DEFECT, KEY_HEADER, check_sender, error_response, words_for
from pipelines.triton.gateway.messages import grpc_messages
from pipelines.triton.gateway.messages.inference_checks import (
    LARGE_BODY_BYTES,
    MAX_BODY_BYTES,
    check_model,
    quoted,
)
from pipelines.triton.gateway.messages.json_requests import generate_message, infer_message
from pipelines.triton.gateway.messages.json_responses import generate_document, infer_document
from pipelines.triton.gateway.one_response import one_response
from pipelines.triton.gateway.open_calls import OpenCalls
from pipelines.triton.gateway.triton import Triton, error_behind
from pipelines.triton.supervision.health import Health

_LOG = logging.getLogger(__name__)

_BODY_TIMEOUT_S = 30.0  # for the largest body over a slow network
_JSON_LENGTH = "Inference-Header-Content-Length"
_EVENTS = "text/event-stream; charset=utf-8"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HttpServer:
    """Answers HTTP requests by forwarding them to Triton.

    Args:
        triton: Connections to Triton.
        health: State of Triton and its models.
        calls: Tracks open requests.
    """

    def __init__(self, triton: Triton, health: Health, calls: OpenCalls) -> None:
        self._triton = triton
        self._health = health
        self._calls = calls

    def application(self) -> web.Application:
        """Return the application, to be run with ``handler_cancellation``."""
        application = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._guard])
        router = application.router
        for path in ("/v2/models/{model}", "/v2/models/{model}/versions/{version:1}"):
            router.add_get(f"{path}/ready", self._model_ready)
            router.add_get(f"{path}/config", self._configuration)
            router.add_get(path, self._describe)
            router.add_post(f"{path}/generate", self._generate)
            router.add_post(f"{path}/generate_stream", self._generate_stream)
            router.add_post(f"{path}/infer", self._infer)
        router.add_get("/v2", self._describe_server)
        router.add_get("/v2/health/live", self._live)
        router.add_get("/v2/health/ready", self._ready)
        router.add_post("/v2/repository/index", self._index)
        router.add_post("/v2/repository/models/{model}/{action:load|unload}", self._control)
        return application

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse cross-site requests of browsers and convert errors to responses."""
        try:
            check_sender(request)
            return await handler(request)
        except DraftproofError as error:
            return error_response(error)
        except web.HTTPException as error:  # from aiohttp: unknown path, body too large
            return web.json_response({"error": words_for(request, error)}, status=error.status)
        except grpc.aio.AioRpcError as error:
            return error_response(self._broken(error))
        except ConnectionError:
            return web.Response(status=400)  # never delivered: the client has disconnected
        except Exception:
            _LOG.exception("%s %s", request.method, quoted(request.path))
            return error_response(DEFECT)

    async def _live(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _ready(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if await self._health.is_ready() else 503)

    async def _model_ready(self, request: web.Request) -> web.Response:
        is_ready = await self._health.is_model_ready(request.match_info["model"])
        return web.Response(status=200 if is_ready else 503)

    async def _describe_server(self, request: web.Request) -> web.Response:
        raw = await self._triton.unary("ServerMetadata")(b"", metadata=self._triton.metadata)
        reply = service_pb2.ServerMetadataResponse.FromString(raw)
        return web.json_response({"name": reply.name, "version": reply.version, "extensions": []})

    async def _describe(self, request: web.Request) -> web.Response:
        model = request.match_info["model"]
        check_model(model, is_operator=self._is_operator(request))
        asked = service_pb2.ModelMetadataRequest(name=model).SerializeToString()
        raw = await self._triton.unary("ModelMetadata")(asked, metadata=self._triton.metadata)
        document = MessageToDict(service_pb2.ModelMetadataResponse.FromString(raw))
        for tensor in (*document.get("inputs", []), *document.get("outputs", [])):
            tensor["shape"] = [int(size) for size in tensor["shape"]]  # protobuf writes int64 as strings
        return web.json_response(document)

    async def _configuration(self, request: web.Request) -> web.Response:
        model, is_operator = request.match_info["model"], self._is_operator(request)
        check_model(model, is_operator=is_operator)
        document = await self._triton.config(model)
        hidden: dict[str, Any] = (
            {} if is_operator else {"parameters": {}}
        )  # they contain paths of this machine
        return web.json_response({**document, **hidden})

    async def _index(self, request: web.Request) -> web.Response:
        self._check_operator(request)
        await request.read()
        return web.json_response(await self._triton.index())

    async def _control(self, request: web.Request) -> web.Response:
        """Load or unload a model from the repository; files or configurations in the request are ignored."""
        self._check_operator(request)
        await request.read()
        await self._health.control(request.match_info["model"], request.match_info["action"])
        return web.Response()

    async def _infer(self, request: web.Request) -> web.StreamResponse:
        model, body = await self._begin(request)
        length = request.headers.get(_JSON_LENGTH)
        if length is not None and not (length.isascii() and length.isdecimal() and len(length) < 10):
            raise InvalidRequestError(
                f"{_JSON_LENGTH} is not a number of bytes",
                values=quoted(length),
                limit="a whole number",
                remedy="send the length of the JSON, or leave it out",
            )
        (message, binary), raw = await self._checked(
            request, body, lambda: infer_message(model, body, int(length) if length else None)
        )
        response = await self._answer(message, raw)
        written, json_length = infer_document(response, binary)
        if json_length is None:
            return web.Response(body=written, content_type="application/json")
        headers = {"Content-Type": "application/octet-stream", _JSON_LENGTH: str(json_length)}
        return web.Response(body=written, headers=headers)

    async def _answer(self, message: Any, raw: bytes) -> Any:
        answering = one_response(self._triton, self._calls, message, raw)
        return await self._calls.run(message.model_name, answering)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        message, raw = await self._generate_request(request)
        response = await self._answer(message, raw)
        return web.Response(body=generate_document(response), content_type="application/json")

    async def _generate_stream(self, request: web.Request) -> web.StreamResponse:
        message, raw = await self._generate_request(request)
        model = message.model_name
        response = web.StreamResponse(headers={"Content-Type": _EVENTS, "Cache-Control": "no-cache"})
        try:
            await self._calls.run(model, self._events(request, response, model, raw))
        except (DraftproofError, grpc.aio.AioRpcError) as error:
            if not response.prepared:
                raise
            told = error if isinstance(error, DraftproofError) else self._broken(error)
            await response.write(b"data: " + error_response(told).body + b"\n\n")  # type: ignore[operator]
        await response.write_eof()
        return response

    async def _events(
        self, request: web.Request, response: web.StreamResponse, model: str, raw: bytes
    ) -> None:
        async for arrival in self._triton.responses(raw):
            if arrival.error_message:
                raise error_behind(arrival.error_message)
            self._calls.hear(model)
            if arrival.infer_response.outputs:
                if not response.prepared:
                    await response.prepare(request)
                await response.write(b"data: " + generate_document(arrival.infer_response) + b"\n\n")
        if not response.prepared:
            await response.prepare(request)

    async def _generate_request(self, request: web.Request) -> tuple[Any, bytes]:
        model, body = await self._begin(request)
        datatypes = await self._health.datatypes(model)

        def read() -> tuple[Any, None]:
            message = generate_message(model, body, datatypes)
            message.parameters["triton_enable_empty_final_response"].bool_param = True
            return message, None

        (message, _), raw = await self._checked(request, body, read)
        return message, raw

    async def _begin(self, request: web.Request) -> tuple[str, bytes]:
        """Check that the model can answer, then read the body."""
        model = request.match_info["model"]
        check_model(model, is_operator=self._is_operator(request))
        self._health.check_open(model)
        if "Content-Encoding" in request.headers:
            raise InvalidRequestError(
                "compressed bodies are not supported",
                values=f"Content-Encoding: {quoted(request.headers['Content-Encoding'])}",
                limit="an uncompressed body",
                remedy="send the body uncompressed",
            )
        try:
            return model, await within(_BODY_TIMEOUT_S, request.read())
        except asyncio.TimeoutError:
            raise web.HTTPRequestTimeout from None
        except web.RequestPayloadError:
            raise web.HTTPBadRequest from None

    async def _checked(
        self, request: web.Request, body: bytes, read: Callable[[], tuple[Any, Any]]
    ) -> tuple[tuple[Any, Any], bytes]:
        """Parse and check a body; returns the message and the bytes for Triton."""

        def work() -> tuple[tuple[Any, Any], bytes]:
            found = read()
            key, is_operator = self._triton.server_key, self._is_operator(request)
            return found, grpc_messages.check(found[0], key, is_operator=is_operator)

        return work() if len(body) < LARGE_BODY_BYTES else await asyncio.to_thread(work)

    def _broken(self, error: Any) -> DraftproofError:
        """Return the error to send to the client for a gRPC error."""
        details = str(error.details() or "")
        ours = from_wire(details)
        if ours is not None:
            return ours
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            return self._health.triton_ended(details[:200])
        return error_behind(details)

    def _is_operator(self, request: web.Request) -> bool:
        given = request.headers.get(KEY_HEADER, "")
        return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._triton.server_key.encode())

    def _check_operator(self, request: web.Request) -> None:
        if not self._is_operator(request):
            raise web.HTTPForbidden
