"""The paths of the front door, and the rules for all of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from aiohttp import hdrs, web

from pipelines.deploy.front_door import FrontDoorSettings
from pipelines.errors import DraftproofError, ServerBusyError, ServerUnavailableError
from pipelines.front_door.access.clients import client_of, set_client
from pipelines.front_door.access.key_ring import KeyRing
from pipelines.front_door.access.origins import Origins
from pipelines.front_door.answering import json_response
from pipelines.front_door.delivery import WRITE_TIMEOUT, deliver
from pipelines.front_door.endpoints.chat import answer_chat
from pipelines.front_door.endpoints.completions import answer_completion
from pipelines.front_door.endpoints.models import describe_model, list_models
from pipelines.front_door.endpoints.responses import answer_response
from pipelines.front_door.endpoints.tokens import DetokenizeBody, TokenizeBody, detokenize, tokenize
from pipelines.front_door.errors import DEFECT, error_of_http, error_response
from pipelines.front_door.observing.exchange import EXCHANGE, Exchange, add_request_id, watching
from pipelines.front_door.observing.metrics_page import MetricsPage
from pipelines.front_door.openapi import Operation, openapi_document
from pipelines.front_door.playground.pages import FILES, show_file
from pipelines.front_door.requests.chat import ChatBody
from pipelines.front_door.requests.completion import CompletionBody
from pipelines.front_door.requests.responses import ResponsesBody
from pipelines.front_door.router_calls import RouterCalls
from pipelines.front_door.served_model import ServedModel
from pipelines.time_limit import within

_LOG = logging.getLogger(__name__)

MAX_OPEN = 1024
"""Most requests at a time, as many as the gateway admits."""

OPEN_PATHS = ("/health", "/openapi.json", *FILES)
"""Paths that need no API key."""

_DRAIN_POLL_S = 0.05

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Endpoint = Callable[[web.Request, ServedModel, RouterCalls], Awaitable[web.StreamResponse]]

POSTS: tuple[tuple[Operation, Endpoint], ...] = (
    (
        Operation("/v1/completions", "post", "Continue a text or tokens", CompletionBody),
        answer_completion,
    ),
    (
        Operation("/v1/chat/completions", "post", "Answer a conversation", ChatBody),
        answer_chat,
    ),
    (
        Operation("/v1/responses", "post", "Answer a conversation, as items", ResponsesBody),
        answer_response,
    ),
    (
        Operation("/tokenize", "post", "Return the tokens of a text or a conversation", TokenizeBody),
        tokenize,
    ),
    (
        Operation("/detokenize", "post", "Return the text of tokens", DetokenizeBody),
        detokenize,
    ),
)


class FrontDoor:
    """Answers OpenAI's API.

    Args:
        model: The model that is served.
        router: Connection to ``router``.
        settings: Who may use it, and its limits.
        metrics: Publishes metrics.
        observers: Called with each exchange when it has ended.

    Raises:
        ServerStartError: The file of API keys is missing or invalid.
    """

    def __init__(
        self,
        model: ServedModel,
        router: RouterCalls,
        settings: FrontDoorSettings,
        metrics: MetricsPage,
        observers: Sequence[Callable[[Exchange], None]],
    ) -> None:
        self._model = model
        self._router = router
        self._settings = settings
        self._metrics = metrics
        self._observers = observers
        self._keys = KeyRing(Path(settings.keys) if settings.keys else None)
        self._origins = Origins(settings.cors_origins)
        self._is_draining = False
        self._num_open = 0

    def application(self) -> web.Application:
        """Return the application, to be run with ``handler_cancellation``."""
        size = self._settings.max_body_bytes
        watch = watching(*self._observers)
        application = web.Application(client_max_size=size, middlewares=[watch, self._guard])
        application.on_response_prepare.append(add_request_id)
        application[WRITE_TIMEOUT] = self._settings.write_timeout_s
        application.on_response_prepare.append(self._origins.add_headers)
        for operation, handler in self._gets():
            application.router.add_get(operation.path, handler)
        for path in FILES:
            application.router.add_get(path, show_file)
        for operation, endpoint in POSTS:
            application.router.add_post(operation.path, self._post(endpoint))
        return application

    async def drain(self, timeout_s: float) -> None:
        """Refuse new requests and wait for the running ones, at most for ``timeout_s``."""
        self._is_draining = True
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        while self._num_open and asyncio.get_running_loop().time() < deadline_s:
            await asyncio.sleep(_DRAIN_POLL_S)

    def _gets(self) -> tuple[tuple[Operation, Handler], ...]:
        return (
            (Operation("/health", "get", "Return 200 if requests are answered, else 503"), self._health),
            (Operation("/metrics", "get", "Return the server's metrics"), self._metrics.answer),
            (Operation("/openapi.json", "get", "Return this document"), self._openapi),
            (Operation("/v1/models", "get", "List the served model"), self._models),
            (Operation("/v1/models/{model}", "get", "Describe the served model"), self._model_named),
        )

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Admit a request, convert errors to responses, and see to it that the client takes the response."""
        try:
            response = await self._answer(request, handler)
            await deliver(request, response)
        except ConnectionError:
            request[EXCHANGE].has_left = True
            return web.Response(status=400)  # never delivered
        return response

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            self._origins.check(request)
            if (preflight := self._origins.preflight(request)) is not None:
                return preflight
            if request.path not in OPEN_PATHS and not _is_local_scrape(request):
                client = self._keys.client(request)
                set_client(request, client)
                request[EXCHANGE].key_name = client.key.name
            return await handler(request)
        except DraftproofError as error:
            request[EXCHANGE].error = error
            return error_response(error)
        except web.HTTPException as error:  # from aiohttp: unknown path, body too large
            return error_of_http(request, error, self._settings)
        except ConnectionError:
            raise  # the client has left
        except Exception:
            _LOG.exception("%s %.200r", request.method, request.path)
            return error_response(DEFECT)

    def _post(self, endpoint: Endpoint) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            self._check_open()
            if hdrs.CONTENT_ENCODING in request.headers:
                raise web.HTTPUnsupportedMediaType
            self._num_open += 1
            try:
                with client_of(request).request():
                    await self._read_body(request)
                    response = await endpoint(request, self._model, self._router)
                    await deliver(request, response)  # until then it counts, and a drain waits for it
                    return response
            finally:
                self._num_open -= 1

        return handle

    def _check_open(self) -> None:
        if self._is_draining:
            raise ServerUnavailableError(
                "the server is shutting down",
                values=f"{self._num_open} requests are still answered",
                limit="no new requests",
                remedy="send the request to another server, or later",
            )
        if self._num_open >= MAX_OPEN:
            raise ServerBusyError(
                "too many requests are open",
                values=f"{self._num_open} requests",
                limit=f"{MAX_OPEN} at a time",
                remedy="send the request again later",
            )

    async def _read_body(self, request: web.Request) -> None:
        try:
            await within(self._settings.body_timeout_s, request.read())
        except asyncio.TimeoutError:
            raise web.HTTPRequestTimeout from None
        except web.RequestPayloadError:
            raise web.HTTPBadRequest from None

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if not self._is_draining and await self._router.is_ready() else 503)

    async def _openapi(self, request: web.Request) -> web.Response:
        return json_response(self._openapi_document)

    @cached_property
    def _openapi_document(self) -> dict[str, Any]:
        operations = [operation for operation, _ in (*self._gets(), *POSTS)]
        return openapi_document(operations, needs_key=bool(self._settings.keys))

    async def _models(self, request: web.Request) -> web.Response:
        return json_response(list_models(self._model))

    async def _model_named(self, request: web.Request) -> web.Response:
        return json_response(describe_model(self._model, request.match_info["model"]))


def _is_local_scrape(request: web.Request) -> bool:
    """Whether this machine asks for metrics: Prometheus has no key, and HAProxy has a port for them."""
    return request.path == "/metrics" and request.remote in ("127.0.0.1", "::1")
