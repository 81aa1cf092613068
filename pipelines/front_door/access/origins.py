"""Refuses requests of web pages, except those of the server itself and of origins that the operator allows.

A browser sends ``Origin`` or ``Sec-Fetch-Site`` with them. A host name proves nothing, because a page can let
its own name resolve to this server (DNS rebinding), so the server's own pages are known by its address, or by
a name that the operator allows. They send no ``Origin`` when they only read.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from aiohttp import hdrs, web

from pipelines.errors import ForbiddenError

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
            hdrs.ACCESS_CONTROL_ALLOW_METHODS: "GET, POST",
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
