"""A server that is asked, and how what it does wrong is named."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
from aiohttp import hdrs

from pipelines.errors import DraftproofError, EngineFailedError, InvalidRequestError, ServerBusyError
from pipelines.validation.openai.server.endpoint import Endpoint

_CONNECT_S = 10.0
_REFUSED = "refused connections"
_MOST_REFUSAL_BYTES = 1 << 20
_MOST_MODELS, _LONGEST_NAME = 256, 256
_OUR_KEY = (401, 403, 407)
_BUSY = (429, 503, 529)
_CLIENTS_OWN = (400, 404, 405, 413, 414, 415, 422)

_NOT_PASSED_ON = frozenset(
    (
        *("connection", "content-encoding", "content-length", "date", "keep-alive", "server", "te"),
        *("trailer", "transfer-encoding", "upgrade", "via", "www-authenticate"),
        # What browsers would take as this server's own word, and whose account it is.
        *("alt-svc", "clear-site-data", "nel", "report-to", "strict-transport-security", "vary"),
        *("openai-organization", "openai-project"),
    )
)
_NO_BEGINNINGS = ("access-control-", "content-security-policy", "cross-origin-", "proxy-", "set-cookie")


@dataclass(frozen=True)
class Head:
    """Status and headers of a response, as far as they are passed on."""

    status: int
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Fault:
    """Why a server gave no answer.

    Attributes:
        name: What went wrong, in words.
        error: The error that stands for it.
        response: What the server said instead, to be passed on; None without one, or if it quotes our key.
        may_have_begun: Whether the server may have done something of what was asked.
    """

    name: str
    error: DraftproofError
    response: tuple[Head, bytes] | None = None
    may_have_begun: bool = True


class Upstream:
    """A server, for any number of requests on one event loop.

    Attributes:
        name: Its name.
        endpoint: Where it is.

    Args:
        name: Name.
        endpoint: Where it is.
        timeout_s: Longest silence.
    """

    def __init__(self, name: str, endpoint: Endpoint, timeout_s: float) -> None:
        self.name = name
        self.endpoint = endpoint
        self._models: dict[str, str] = {}
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=timeout_s),
            connector=aiohttp.TCPConnector(limit=0, force_close=True),  # an idle one may just be closed
            headers={"Authorization": f"Bearer {endpoint.key}"} if endpoint.key else {},
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    @asynccontextmanager
    async def send(
        self, method: str, path: str, content: bytes | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request and yield the response.

        Raises:
            aiohttp.ClientError: There is none.
            asyncio.TimeoutError: The server is silent.
        """
        headers = {hdrs.ACCEPT_ENCODING: "identity", hdrs.CONTENT_TYPE: "application/json"}
        url = f"{self.endpoint.url}{path}"
        async with self._session.request(
            method, url, data=content, headers=headers, allow_redirects=False
        ) as response:
            yield response

    def changes_model(self, asked: str, answered: str) -> bool:
        """Note which model answered; returns whether it is another one than before."""
        asked = asked[:_LONGEST_NAME]
        before = self._models.pop(asked, answered)
        self._models[asked] = answered or before
        if len(self._models) > _MOST_MODELS:  # clients may ask for any name
            del self._models[next(iter(self._models))]
        return bool(before and answered) and before != answered

    async def refusal(self, response: aiohttp.ClientResponse) -> Fault:
        """Return what a response without an answer means."""
        status = response.status
        said = await _read_up_to(_MOST_REFUSAL_BYTES, response.content)
        name = f"HTTP {status}"
        may_have_begun = status >= 500
        if status in _OUR_KEY or self._quotes_key(said):
            return self._fault(name, EngineFailedError, may_have_begun=may_have_begun)
        kind: type[DraftproofError] = EngineFailedError
        if status in _BUSY:
            kind = ServerBusyError
        elif status in _CLIENTS_OWN:
            kind = InvalidRequestError
        return self._fault(name, kind, (head_of(response), said), may_have_begun=may_have_begun)

    def failure(self, name: str) -> Fault:
        """Return a fault after which there is nothing to pass on."""
        return self._fault(name, EngineFailedError, may_have_begun=name != _REFUSED)

    def _fault(
        self,
        name: str,
        kind: type[DraftproofError],
        response: tuple[Head, bytes] | None = None,
        *,
        may_have_begun: bool,
    ) -> Fault:
        what = f"an upstream server gave no answer: {self.name}: {name}"
        return Fault(name, kind(what, "send the request again later"), response, may_have_begun)

    def _quotes_key(self, said: bytes) -> bool:
        return bool(self.endpoint.key) and self.endpoint.key.encode() in said


async def _read_up_to(most_bytes: int, content: aiohttp.StreamReader) -> bytes:
    """Read a body, or its beginning; a single read returns no more than has arrived."""
    said = bytearray()
    while len(said) < most_bytes and (data := await content.read(most_bytes - len(said))):
        said += data
    return bytes(said)


def head_of(response: aiohttp.ClientResponse) -> Head:
    """Return what is passed on of status and headers."""
    hop = [each.strip().lower() for each in response.headers.get(hdrs.CONNECTION, "").split(",")]
    headers = {
        name: value
        for name, value in response.headers.items()
        if name.lower() not in (*_NOT_PASSED_ON, *hop) and not name.lower().startswith(_NO_BEGINNINGS)
    }
    return Head(response.status, headers)


def name_of(error: BaseException) -> str:
    """Name why a connection gave no whole response, without what the server said."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return _REFUSED
    if isinstance(error, asyncio.TimeoutError):
        return "silence"
    return "a connection that broke"
