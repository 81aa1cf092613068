"""Serves clients over HTTP with the subset of Triton's paths that they need."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Any

import grpc  # type: ignore[import-untyped]
from aiohttp import web
from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]

from pipelines.errors import DraftproofError, ForbiddenError, InternalError, InvalidRequestError
from pipelines.time_limit import within
from pipelines.triton.gateway.json_messages import (
    generate_document,
    generate_message,
    infer_document,
    infer_message,
)
from pipelines.triton.gateway.relay import CheckedRequest, Relay
from pipelines.triton.gateway.request_checks import MAX_BODY_BYTES, quoted
from pipelines.triton.gateway.triton import KEY_HEADER, error_of, status_of
from pipelines.web_application import Handler, guarded_application

_LOG = logging.getLogger(__name__)

_BODY_TIMEOUT_S = 30.0  # for the largest body over a slow network
_JSON_LENGTH = "Inference-Header-Content-Length"
_EVENTS = "text/event-stream; charset=utf-8"


class HttpServer:
    """Answers HTTP requests by asking Triton.

    Args:
        relay: Sends requests to Triton.
    """

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    def application(self, hosts: Collection[str] = ()) -> web.Application:
        """Return the application, to be run with ``handler_cancellation``.

        Args:
            hosts: Names by which the server is asked besides its addresses.
        """
        application = guarded_application(
            errors_in_json,
            hosts=hosts,
            any_host=lambda request: request.path.startswith("/v2/health/"),
            max_body_bytes=MAX_BODY_BYTES,
        )
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
        return application

    async def _live(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _ready(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if await self._relay.supervisor.is_ready() else 503)

    async def _model_ready(self, request: web.Request) -> web.Response:
        model = self._relay.model_of(request.match_info["model"])
        return web.Response(status=200 if await self._relay.supervisor.is_model_ready(model) else 503)

    async def _describe_server(self, request: web.Request) -> web.Response:
        reply = await self._relay.triton.ask("ServerMetadata")
        return web.json_response({"name": reply.name, "version": reply.version, "extensions": []})

    async def _describe(self, request: web.Request) -> web.Response:
        asked, is_operator = request.match_info["model"], self._is_operator(request)
        document = MessageToDict(await self._relay.metadata(asked, is_operator=is_operator))
        for tensor in (*document.get("inputs", []), *document.get("outputs", [])):
            tensor["shape"] = [int(size) for size in tensor["shape"]]  # protobuf writes int64 as strings
        return web.json_response(document)

    async def _configuration(self, request: web.Request) -> web.Response:
        asked, is_operator = request.match_info["model"], self._is_operator(request)
        reply = await self._relay.configuration(asked, is_operator=is_operator)
        return web.json_response(
            {"parameters": {}, **MessageToDict(reply.config, preserving_proto_field_name=True)}
        )

    async def _index(self, request: web.Request) -> web.Response:
        self._check_operator(request)
        await request.read()
        return web.json_response(await self._relay.triton.index())

    async def _infer(self, request: web.Request) -> web.StreamResponse:
        asked, body = await self._begin(request)
        length = request.headers.get(_JSON_LENGTH)
        if length is not None and not (length.isascii() and length.isdecimal() and len(length) < 10):
            raise InvalidRequestError(
                f"{_JSON_LENGTH} is {quoted(length)}, not a number of bytes",
                "send the length of the JSON, or leave it out",
            )
        binary: set[str] | None = None

        def read() -> Any:
            nonlocal binary
            message, binary = infer_message(asked, body, int(length) if length else None)
            return message

        response = await self._relay.one_response(await self._checked(request, body, read))
        written, json_length = infer_document(response, binary)
        if json_length is None:
            return web.Response(body=written, content_type="application/json")
        headers = {"Content-Type": "application/octet-stream", _JSON_LENGTH: str(json_length)}
        return web.Response(body=written, headers=headers)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        response = await self._relay.one_response(await self._generate_request(request))
        return web.Response(body=generate_document(response), content_type="application/json")

    async def _generate_stream(self, request: web.Request) -> web.StreamResponse:
        checked = await self._generate_request(request)
        events = web.StreamResponse(headers={"Content-Type": _EVENTS, "Cache-Control": "no-cache"})

        async def write(response: Any) -> None:
            if response.outputs:
                await events.prepare(request)  # has no effect after the first response
                await events.write(b"data: " + generate_document(response) + b"\n\n")

        try:
            await self._relay.stream(checked, write)
            await events.prepare(request)
        except DraftproofError as error:
            if not events.prepared:
                raise
            await events.write(b"data: " + _error_response(error).body + b"\n\n")  # type: ignore[operator]
        await events.write_eof()
        return events

    async def _generate_request(self, request: web.Request) -> CheckedRequest:
        asked, body = await self._begin(request)
        datatypes = await self._relay.triton.datatypes(self._relay.model_of(asked))

        def read() -> Any:
            message = generate_message(asked, body, datatypes)
            message.parameters["triton_enable_empty_final_response"].bool_param = True
            return message

        return await self._checked(request, body, read)

    async def _begin(self, request: web.Request) -> tuple[str, bytes]:
        """Check that the model can answer, then read the body."""
        asked = request.match_info["model"]
        await self._relay.opened(asked, is_operator=self._is_operator(request))
        if "Content-Encoding" in request.headers:
            raise InvalidRequestError(
                f"the body has the Content-Encoding {quoted(request.headers['Content-Encoding'])}",
                "send the body uncompressed",
            )
        try:
            return asked, await within(_BODY_TIMEOUT_S, request.read())
        except asyncio.TimeoutError:
            raise web.HTTPRequestTimeout from None
        except web.RequestPayloadError:
            raise web.HTTPBadRequest from None

    async def _checked(self, request: web.Request, body: bytes, read: Callable[[], Any]) -> CheckedRequest:
        return await self._relay.check(read, len(body), is_operator=self._is_operator(request))

    def _is_operator(self, request: web.Request) -> bool:
        return self._relay.triton.is_server_key(request.headers.get(KEY_HEADER, ""))

    def _check_operator(self, request: web.Request) -> None:
        if not self._is_operator(request):
            raise ForbiddenError(
                f"only operators may do this: {request.method} {quoted(request.path)}",
                f"send the server's key, <run directory>/key, in the header {KEY_HEADER}",
            )


@web.middleware
async def errors_in_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer a request, and convert errors to responses."""
    try:
        return await handler(request)
    except DraftproofError as error:
        return _error_response(error)
    except web.HTTPException as error:  # from aiohttp: unknown path, body too large
        return web.json_response({"error": _explained(request, error)}, status=error.status)
    except grpc.aio.AioRpcError as error:
        return _error_response(error_of(error))
    except ConnectionError:
        return web.Response(status=400)  # never delivered: the client has disconnected
    except Exception:
        _LOG.exception("%s %s", request.method, quoted(request.path))
        return _error_response(
            InternalError(
                "the server failed on this request, by a bug in Draftproof",
                "the server's log has the traceback",
            )
        )


def _error_response(error: DraftproofError) -> web.Response:
    _, status = status_of(error)
    headers = {"Retry-After": "1"} if status == 503 else {}
    return web.json_response({"error": error.to_wire()}, status=status, headers=headers)


def _explained(request: web.Request, error: web.HTTPException) -> str:
    """Explain an error of aiohttp, in the form of ``DraftproofError.to_wire``."""
    known = {
        404: "is not a path of KServe's inference protocol",
        405: "does not have this method",
        413: f"has a body of more than {MAX_BODY_BYTES} bytes, which is too large",
    }
    what = known.get(error.status, f"cannot be read: {error.reason}")
    return InvalidRequestError(
        f"{request.method} {quoted(request.path)} {what}",
        "see docs/security/threat-model.md for who may use which path",
    ).to_wire()
