"""Makes and serves every HTTP application of ours, with one guard against web pages of other sites.

A browser sends ``Origin`` or ``Sec-Fetch-Site`` with most requests of web pages. A page can also let its own
name lead to this machine (DNS rebinding): its questions then come from its own origin, and plain ones without
either header. So ``Host`` must be an address, localhost, or a name that the operator allows. A browser always
sends it; what comes without one is a program.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import math
import re
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection

from aiohttp import hdrs, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Middleware

from pipelines.errors import ForbiddenError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

SHUTDOWN_S = 2.0
"""Time for sending final errors."""

BACKLOG = 4096
"""Connections of a burst that wait to be accepted."""

_METRICS_PER_S = 2.0
_METRICS_AT_ONCE = 10
_METRICS_HEADERS = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
_FETCH_SITE = "Sec-Fetch-Site"
_OWN_SITES = ("none", "same-origin")
_PREFLIGHT_S = 600
_READABLE = "Retry-After, X-Request-Id"
_SHOWN = 200  # characters of a header
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]{2,45})\]|([A-Za-z0-9._-]{1,253}))(?::[0-9]{1,5})?")


def guarded_application(
    *outside: Middleware,
    origins: Collection[str] = (),
    hosts: Collection[str] = (),
    has_pages: bool = False,
    any_host: Callable[[web.Request], bool] = lambda request: False,
    max_body_bytes: int = 1 << 20,
) -> web.Application:
    """Return an application without paths, which web pages of other sites cannot use.

    Args:
        *outside: Middlewares around the guard, which answer its ``ForbiddenError``.
        origins: Origins of other sites whose pages may use it, such as ``https://chat.example.org``.
        hosts: Names by which it may be asked.
        has_pages: Whether it has pages itself, which may use it.
        any_host: Whether a request may come by any name: it reveals nothing, or an API key is asked for,
            which no page has.
        max_body_bytes: Largest body.
    """
    guard = _Guard(frozenset(origins), frozenset(hosts), any_host, has_pages=has_pages)
    application = web.Application(middlewares=[*outside, guard.admit], client_max_size=max_body_bytes)
    application.on_response_prepare.append(guard.add_headers)
    return application


def metrics_page(read: Callable[[], Awaitable[bytes]]) -> Handler:
    """Return a handler that answers with metrics in Prometheus' format.

    Reading them takes several milliseconds of the cores that a step needs, so they are read twice a second,
    or ten times after a pause; all who ask in between get the last page.

    Args:
        read: Returns the metrics as text.
    """
    reading: asyncio.Future[bytes] | None = None
    began_s, allowed = -math.inf, 0.0

    async def answer(request: web.Request) -> web.Response:
        nonlocal reading, began_s, allowed
        now_s = time.monotonic()
        allowed_now = min(_METRICS_AT_ONCE, allowed + (now_s - began_s) * _METRICS_PER_S)
        if reading is None or (reading.done() and (allowed_now >= 1 or reading.exception())):
            reading, began_s, allowed = asyncio.ensure_future(read()), now_s, max(allowed_now - 1, 0)
        page = await asyncio.shield(reading)  # a client that leaves does not end it for the others
        return web.Response(body=page, headers=_METRICS_HEADERS)

    return answer


@contextlib.asynccontextmanager
async def served(
    application: web.Application,
    listening: socket.socket,
    *,
    tls: ssl.SSLContext | None = None,
    idle_s: float = 75.0,
) -> AsyncIterator[None]:
    """Serve an application during a block; a client that leaves cancels its request.

    Args:
        application: The application.
        listening: The listening socket, which is closed at the end.
        tls: Certificate; None for plain HTTP.
        idle_s: Longest time of a connection without a request, also at its beginning.
    """
    runner = web.AppRunner(
        application,
        access_log=None,
        handler_cancellation=True,
        auto_decompress=False,  # aiohttp would decompress to any size before the request is refused
        keepalive_timeout=idle_s,
        shutdown_timeout=SHUTDOWN_S,
    )
    await runner.setup()
    try:
        await web.SockSite(runner, listening, ssl_context=tls, backlog=BACKLOG).start()
        yield
    finally:
        await runner.cleanup()


def log_no_faults_of_clients() -> None:
    """Keep errors that clients cause, such as invalid HTTP or disconnects, from filling the log."""
    logging.getLogger("aiohttp.server").addFilter(_is_of_the_server)


def _is_of_the_server(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, (HttpProcessingError, web.RequestPayloadError, ConnectionError))


class _Guard:
    def __init__(
        self,
        origins: frozenset[str],
        hosts: frozenset[str],
        any_host: Callable[[web.Request], bool],
        *,
        has_pages: bool,
    ) -> None:
        self._origins = origins
        self._hosts = hosts
        self._any_host = any_host
        self._has_pages = has_pages

    @web.middleware
    async def admit(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer a request, or refuse it with ForbiddenError."""
        if request.headers.get(hdrs.ORIGIN) not in self._origins:
            self._check(request)
        elif request.method == hdrs.METH_OPTIONS:
            return _preflight(request)
        return await handler(request)

    def _check(self, request: web.Request) -> None:
        origin, host = request.headers.get(hdrs.ORIGIN), request.headers.get(hdrs.HOST)
        site = request.headers.get(_FETCH_SITE, "none")
        here = (f"http://{host}", f"https://{host}")  # TLS may end at a proxy
        is_known = host is None or self._is_known(host) or not self._origins.isdisjoint(here)
        is_own = self._has_pages and is_known and origin in (None, *here) and site in _OWN_SITES
        if not is_own and (origin is not None or site != "none"):
            raise ForbiddenError(
                f"a page of another site may not use this server: Origin: {(origin or site)[:_SHOWN]}",
                "the operator of OpenAI's API can add the origin to cors_origins",
            )
        if not is_known and not self._any_host(request):
            raise ForbiddenError(
                f"the server is not known by this name: Host: {str(host)[:_SHOWN]}",
                "ask it by its address; the operator can add the name to hosts",
            )

    def _is_known(self, host: str) -> bool:
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        name = (found[1] or found[2]).lower()
        return name == "localhost" or name in self._hosts or _is_address(name)

    async def add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        """Let a page of an allowed origin read the response."""
        origin = request.headers.get(hdrs.ORIGIN)
        if self._origins:
            response.headers[hdrs.VARY] = "Origin"
        if origin in self._origins:
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = str(origin)
            response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = _READABLE


def _preflight(request: web.Request) -> web.Response:
    """Answer a browser's question whether a page of an allowed origin may send a request."""
    headers = {
        hdrs.ACCESS_CONTROL_ALLOW_METHODS: "GET, POST, DELETE",
        hdrs.ACCESS_CONTROL_ALLOW_HEADERS: request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS, ""),
        hdrs.ACCESS_CONTROL_MAX_AGE: str(_PREFLIGHT_S),
    }
    return web.Response(status=204, headers=headers)


def _is_address(name: str) -> bool:
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return False
