"""The paths that are passed on, and what a client sees of the rollout."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from pathlib import Path

import aiohttp
from aiohttp import web

from pipelines.deploy.front_door import FrontDoorSettings
from pipelines.errors import DraftproofError, EngineFailedError, InvalidRequestError, ServerUnavailableError
from pipelines.front_door.access.clients import KeyRing
from pipelines.front_door.delivery import deliver
from pipelines.front_door.errors import error_response
from pipelines.front_door.guarding import HEALTH, RequestsInProgress, needs_key, openai_application
from pipelines.front_door.observing.metrics import MetricsPage
from pipelines.front_door.requests.body import beside_the_loop, receive_body
from pipelines.router.arms import Arm
from pipelines.router.routing import Routing
from pipelines.upstreams.call import UpstreamCall
from pipelines.upstreams.reading import Piece
from pipelines.upstreams.request import RESPONSES, ForwardedRequest
from pipelines.upstreams.upstream import Upstream, head_of, name_of
from pipelines.web_application import Handler

ARM = "X-Draftproof-Arm"
"""Header of a request that chooses an arm, and of a response that names the one that answered."""

SESSION = "X-Session-Id"
"""Header of a request whose session stays with its arm."""

PATHS = ("/v1/completions", "/v1/chat/completions", RESPONSES)
_BAD_GATEWAY = 502


class Application:
    """Passes OpenAI's API on.

    Attributes:
        in_progress: The requests that are being answered.

    Args:
        routing: Chooses the server of a request.
        servers: The servers by their names.
        settings: Who may ask, and limits.
        metrics: What operators see.
        server_key: Key with which operators choose an arm; "" for none.

    Raises:
        ServerStartError: The file of API keys is invalid.
    """

    def __init__(
        self,
        routing: Routing[Piece],
        servers: Mapping[str, Upstream],
        settings: FrontDoorSettings,
        metrics: MetricsPage,
        server_key: str = "",
    ) -> None:
        self.in_progress = RequestsInProgress()
        self._routing = routing
        self._servers = servers
        self._settings = settings
        self._metrics = metrics
        self._keys = KeyRing(Path(settings.keys) if settings.keys else None, server_key)

    def application(self) -> web.Application:
        """Return the application, to be run with ``handler_cancellation``."""
        application = openai_application(self._settings, self._metrics.observe, open_paths=(HEALTH,))
        application.middlewares.append(self._admit)
        application.router.add_get(HEALTH, self._health)
        application.router.add_get("/metrics", self._metrics.answer)
        application.router.add_get("/v1/models", self._models)
        for path in PATHS:
            application.router.add_post(path, self._answer)
        return application

    @web.middleware
    async def _admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if needs_key(request, self._settings, (HEALTH,)):
                self._keys.client(request)
            return await handler(request)
        except EngineFailedError as error:
            return error_response(error, _BAD_GATEWAY)
        except web.HTTPNotFound:
            return error_response(_not_passed_on(request), 404, request)

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=503 if self.in_progress.is_draining else 200)

    async def _models(self, request: web.Request) -> web.Response:
        """Pass on what the server in service lists."""
        stable = self._servers[self._routing.table.stable]
        try:
            async with stable.send("GET", request.path) as response:
                if response.status != 200:
                    raise (await stable.refusal(response)).error
                head = head_of(response)
                return web.Response(body=await response.read(), headers=head.headers)
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            raise ServerUnavailableError(
                f"the server in service does not list its models: {name_of(error)}",
                "send the request again later",
            ) from None

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        with self.in_progress.one_more():
            response = await self._forward(request)
            await deliver(request, response)  # a drain waits for it
            return response

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        arm = request.headers.get(ARM, "")
        if arm:
            self._keys.check_arm(request, arm)
        content = await receive_body(request, self._settings.body_timeout_s)
        session_id = request.headers.get(SESSION, "")
        forwarded = await beside_the_loop(
            len(content), ForwardedRequest.of, request.path, content, session_id, arm
        )
        response: web.StreamResponse | None = None
        async with aclosing(self._pieces(forwarded)) as answered:
            async for arm, piece in answered:
                if response is None:
                    response = web.StreamResponse(
                        status=piece.head.status, headers={**piece.head.headers, ARM: arm}
                    )
                    if piece.is_last:
                        response.content_length = len(piece.data)
                await _send(request, response, piece)
        assert response is not None  # a piece is yielded, or an error raised
        return response

    async def _pieces(self, request: ForwardedRequest) -> AsyncGenerator[tuple[Arm, Piece], None]:
        """Stream the response of one server; a refusal, if no server answers.

        Raises:
            InvalidRequestError: The client chose an arm that is not served.
            EngineFailedError: No server answered or said why.
        """
        table = self._routing.table
        own_id = secrets.token_hex(12)
        key = request.session_id or own_id
        routed = self._routing.begin(
            table,
            own_id,
            key,
            session_id=request.session_id,
            named=request.arm,
            prompt_id=request.prompt_id,
        )
        call = UpstreamCall(request, self._servers, table)
        try:
            async with aclosing(self._routing.answer(routed, call)) as answered:
                async for arm, piece in answered:
                    call.may_read.clear()
                    yield arm, piece
                    call.may_read.set()
        except DraftproofError as error:
            arm, fault = call.fault_of(error)
            if fault.response is None:
                raise fault.error from None
            yield arm, Piece(*fault.response, is_last=True)


def _not_passed_on(request: web.Request) -> InvalidRequestError:
    seen, known = f"{request.method} {request.path!r}", ", ".join((*PATHS, "/v1/models"))
    return InvalidRequestError(f"{seen} is not passed on, only {known} are", "ask one of the servers itself")


async def _send(request: web.Request, response: web.StreamResponse, piece: Piece) -> None:
    """Send a piece; break the connection where the server broke it.

    Raises:
        ConnectionError: The client has left, or the connection was broken.
    """
    await response.prepare(request)
    await response.write(piece.data)
    if piece.is_cut and request.transport is not None:
        request.transport.abort()
        raise ConnectionResetError("the upstream server broke the connection")
