"""The rules for every request: how many there may be, from which pages, and what becomes of errors.

A browser sends ``Origin`` or ``Sec-Fetch-Site`` with requests of web pages. A host name proves nothing,
because a page can let its own name resolve to this server (DNS rebinding), so the server's own pages are
known by its address, or by a name that the operator allows. They send no ``Origin`` when they only read.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from aiohttp import hdrs, web

from pipelines.deploy.front_door import FrontDoorSettings
from pipelines.errors import DraftproofError, ForbiddenError, ServerBusyError, ServerUnavailableError
from pipelines.front_door.delivery import deliver
from pipelines.front_door.errors import response_to
from pipelines.front_door.observing.exchange import EXCHANGE

MAX_REQUESTS = 1024
"""Most requests at a time: as many as the gateway has open calls (``gateway.open_calls``)."""

_POLL_S = 0.05


class RequestsInProgress:
    """Counts requests. Used on one event loop.

    Attributes:
        is_draining: Whether new requests are refused because the server stops.
    """

    def __init__(self) -> None:
        self.is_draining = False
        self._number = 0

    def __len__(self) -> int:
        return self._number

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """Count a request during a block.

        Raises:
            ServerUnavailableError: The server stops.
            ServerBusyError: Too many requests are in progress.
        """
        if self.is_draining:
            raise ServerUnavailableError(
                "the server is shutting down",
                values=f"{self._number} requests are still answered",
                limit="no new requests",
                remedy="send the request to another server, or later",
            )
        if self._number >= MAX_REQUESTS:
            raise ServerBusyError(
                "too many requests are open",
                values=f"{self._number} requests",
                limit=f"{MAX_REQUESTS} at a time",
                remedy="send the request again later",
            )
        self._number += 1
        try:
            yield
        finally:
            self._number -= 1

    async def drain(self, timeout_s: float) -> None:
        """Refuse new requests and wait for those in progress, at most for ``timeout_s``."""
        self.is_draining = True
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        while self._number and asyncio.get_running_loop().time() < deadline_s:
            await asyncio.sleep(_POLL_S)


_FETCH_SITE = "Sec-Fetch-Site"
_OWN_SITES = ("none", "same-origin")
_PREFLIGHT_S = 600
_READABLE = "Retry-After, X-Request-Id"


class Origins:
    """Checks from which web pages a request may come.

    Args:
        allowed: Origins of other sites, such as ``https://chat.example.org``.
    """

    def __init__(self, allowed: tuple[str, ...]) -> None:
        self._allowed = frozenset(allowed)

    def check(self, request: web.Request) -> None:
        """Refuse a request of another site's page.

        Raises:
            ForbiddenError: It comes from such a page.
        """
        origin = request.headers.get(hdrs.ORIGIN)
        site = request.headers.get(_FETCH_SITE, "none")
        if origin in self._allowed or (origin is None and site == "none"):
            return
        here = (f"http://{request.host}", f"https://{request.host}")  # TLS may end at a proxy
        is_own = origin in (None, *here) and site in _OWN_SITES
        is_known = _has_address(request) or not self._allowed.isdisjoint(here)
        if not (is_own and is_known):
            raise ForbiddenError(
                "a page of another site may not use this server",
                values=f"Origin: {(origin or site)[:200]}",
                limit=f"pages of {', '.join(sorted(self._allowed)) or 'no other site'}",
                remedy="the operator can add the origin to cors_origins",
            )

    def preflight(self, request: web.Request) -> web.Response | None:
        """Answer a browser's question whether a page of an allowed origin may send a request."""
        if request.method != hdrs.METH_OPTIONS or request.headers.get(hdrs.ORIGIN) not in self._allowed:
            return None
        headers = {
            hdrs.ACCESS_CONTROL_ALLOW_METHODS: "GET, POST, DELETE",
            hdrs.ACCESS_CONTROL_ALLOW_HEADERS: request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS, ""),
            hdrs.ACCESS_CONTROL_MAX_AGE: str(_PREFLIGHT_S),
        }
        return web.Response(status=204, headers=headers)

    async def add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        """Let a page of an allowed origin read the response."""
        origin = request.headers.get(hdrs.ORIGIN)
        if self._allowed:
            response.headers[hdrs.VARY] = "Origin"
        if origin is not None and origin in self._allowed:
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin
            response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = _READABLE


def _has_address(request: web.Request) -> bool:
    """Return whether the client reached the server by an address, or as localhost."""
    try:
        host = urlsplit(f"//{request.host}").hostname or ""
        return host == "localhost" or bool(ipaddress.ip_address(host))
    except ValueError:
        return False


async def guarded(
    request: web.Request, answer: Awaitable[web.StreamResponse], settings: FrontDoorSettings
) -> web.StreamResponse:
    """Answer a request, convert errors to responses, and see to it that the client takes the response.

    Args:
        request: The request, which is recorded (``observing.exchange``).
        answer: Answers it.
        settings: Limits that an error may name.
    """
    try:
        response = await _answered(request, answer, settings)
        await deliver(request, response)
    except ConnectionError:
        request[EXCHANGE].has_left = True
        return web.Response(status=400)  # never delivered
    return response


def is_local_scrape(request: web.Request) -> bool:
    """Whether this machine asks for metrics: Prometheus has no key, and HAProxy has a port for them."""
    return request.path == "/metrics" and request.remote in ("127.0.0.1", "::1")


async def _answered(
    request: web.Request, answer: Awaitable[web.StreamResponse], settings: FrontDoorSettings
) -> web.StreamResponse:
    try:
        return await answer
    except ConnectionError:
        raise  # the client has left
    except Exception as error:
        if isinstance(error, DraftproofError):
            request[EXCHANGE].error = error
        return response_to(error, request, settings)
