"""The paths that are passed on, and what a client sees of the rollout."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import aiohttp
from aiohttp import web

from pipelines.deploy.front_door import FrontDoorSettings
from pipelines.errors import EngineFailedError, ServerUnavailableError
from pipelines.front_door.access.key_ring import KeyRing
from pipelines.front_door.access.requests_in_progress import RequestsInProgress
from pipelines.front_door.delivery import WRITE_TIMEOUT, deliver, dropped_after
from pipelines.front_door.errors import error_response, response_to
from pipelines.front_door.requests.body import receive_body, refuse_compressed
from pipelines.upstreams.call import Piece
from pipelines.upstreams.request import ForwardedRequest
from pipelines.upstreams.routing import UpstreamRouter
from pipelines.upstreams.upstream import head_of, name_of

ARM = "X-Draftproof-Arm"
"""Header of a request that chooses an arm, and of a response that names the one that answered."""

SESSION = "X-Session-Id"
"""Header of a request whose session stays with its arm."""

PATHS = ("/v1/completions", "/v1/chat/completions")
_BAD_GATEWAY = 502

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Application:
    """Passes OpenAI's API on.

    Attributes:
        in_progress: The requests that are being answered.

    Args:
        router: Who answers.
        settings: Who may ask, and limits.

    Raises:
        ServerStartError: The file of API keys is invalid.
    """

    def __init__(self, router: UpstreamRouter, settings: FrontDoorSettings) -> None:
        self.in_progress = RequestsInProgress()
        self._router = router
        self._settings = settings
        self._keys = KeyRing(Path(settings.keys) if settings.keys else None)

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
        except ConnectionError:
            raise  # the client has left
        except Exception as error:
            return response_to(error, request, self._settings)

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=503 if self.in_progress.is_draining else 200)

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
        with self.in_progress.one_more():
            refuse_compressed(request)
            response = await self._forward(request)
            await deliver(request, response)  # until then it counts, and a drain waits for it
            return response

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        forwarded = ForwardedRequest.of(
            request.path,
            await receive_body(request, self._settings.body_timeout_s),
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
