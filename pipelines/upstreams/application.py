"""The paths that are passed on, and what a client sees of the rollout."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import aiohttp
from aiohttp import hdrs, web

from pipelines.deploy.front_door import FrontDoorSettings
from pipelines.errors import DraftproofError, EngineFailedError, ServerUnavailableError
from pipelines.front_door.access.key_ring import KeyRing
from pipelines.front_door.delivery import WRITE_TIMEOUT, deliver, dropped_after
from pipelines.front_door.errors import DEFECT, error_of_http, error_response
from pipelines.time_limit import within
from pipelines.upstreams.call import Piece
from pipelines.upstreams.request import ForwardedRequest
from pipelines.upstreams.routing import UpstreamRouter
from pipelines.upstreams.upstream import head_of, name_of

_LOG = logging.getLogger(__name__)

ARM = "X-Draftproof-Arm"
"""Header of a request that chooses an arm, and of a response that names the one that answered."""

SESSION = "X-Session-Id"
"""Header of a request whose session stays with its arm."""

PATHS = ("/v1/completions", "/v1/chat/completions")
_BAD_GATEWAY = 502
_DRAIN_POLL_S = 0.05

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Application:
    """Passes OpenAI's API on.

    Args:
        router: Who answers.
        settings: Who may ask, and limits.

    Raises:
        ServerStartError: The file of API keys is invalid.
    """

    def __init__(self, router: UpstreamRouter, settings: FrontDoorSettings) -> None:
        self._router = router
        self._settings = settings
        self._keys = KeyRing(Path(settings.keys) if settings.keys else None)
        self._is_draining = False
        self._num_open = 0

    async def drain(self, timeout_s: float) -> None:
        """Refuse new requests and wait for the running ones, at most for ``timeout_s``."""
        self._is_draining = True
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        while self._num_open and asyncio.get_running_loop().time() < deadline_s:
            await asyncio.sleep(_DRAIN_POLL_S)

    def application(self) -> web.Application:
        """Return the application, to be run with ``handler_cancellation``."""
        application = web.Application(
            client_max_size=self._settings.max_body_bytes, middlewares=[self._guard]
        )
        application[WRITE_TIMEOUT] = self._settings.write_timeout_s
        application.router.add_get("/health", self._health)
        application.router.add_get("/v1/models", self._models)
        for path in PATHS:
            application.router.add_post(path, self._answer)
        return application

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            response = await self._admit(request, handler)
            await deliver(request, response)
        except ConnectionError:
            return web.Response(status=400)  # never delivered
        return response

    async def _admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if request.path != "/health":
                self._keys.client(request)
            return await handler(request)
        except EngineFailedError as error:
            return error_response(error, _BAD_GATEWAY)
        except DraftproofError as error:
            return error_response(error)
        except web.HTTPException as error:  # from aiohttp: unknown path, body too large
            return error_of_http(request, error, self._settings)
        except ConnectionError:
            raise  # the client has left
        except Exception:
            _LOG.exception("%s %.200r", request.method, request.path)
            return error_response(DEFECT)

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=503 if self._is_draining else 200)

    async def _models(self, request: web.Request) -> web.Response:
        """Pass on what the server in service lists."""
        stable = self._router.stable
        try:
            async with stable.send("GET", request.path) as response:
                if response.status != 200:
                    raise (await stable.refusal(response)).error
                head = head_of(response)
                return web.Response(body=await response.read(), headers=head.headers)
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            raise ServerUnavailableError(
                "the server in service does not answer",
                values=name_of(error),
                limit="a list of models",
                remedy="send the request again later",
            ) from None

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if hdrs.CONTENT_ENCODING in request.headers:
            raise web.HTTPUnsupportedMediaType
        if self._is_draining:
            raise ServerUnavailableError(
                "the server is shutting down",
                values=f"{self._num_open} requests are still answered",
                limit="no new requests",
                remedy="send the request again later",
            )
        self._num_open += 1
        try:
            response = await self._forward(request)
            await deliver(request, response)  # until then it counts, and a drain waits for it
            return response
        finally:
            self._num_open -= 1

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        forwarded = ForwardedRequest.of(
            request.path,
            await self._read_body(request),
            request.headers.get(SESSION, ""),
            request.headers.get(ARM, ""),
        )
        response: web.StreamResponse | None = None
        async with aclosing(self._router.answer(forwarded)) as answered:
            async for arm, piece in answered:
                if response is None:
                    response = web.StreamResponse(
                        status=piece.head.status, headers={**piece.head.headers, ARM: arm}
                    )
                    if piece.is_last:
                        response.content_length = len(piece.data)
                await _send(request, response, piece)
        assert response is not None  # the router yields a piece or raises
        return response

    async def _read_body(self, request: web.Request) -> bytes:
        try:
            return await within(self._settings.body_timeout_s, request.read())
        except asyncio.TimeoutError:
            raise web.HTTPRequestTimeout from None
        except web.RequestPayloadError:
            raise web.HTTPBadRequest from None


async def _send(request: web.Request, response: web.StreamResponse, piece: Piece) -> None:
    """Send a piece; break the connection where the server broke it.

    Raises:
        ConnectionError: The client has left, or the connection was broken.
    """
    with dropped_after(request):
        await response.prepare(request)
        await response.write(piece.data)
    if piece.is_cut and request.transport is not None:
        request.transport.abort()
        raise ConnectionResetError("the upstream server broke the connection")
